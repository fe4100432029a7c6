// The operator that maps the columns of tables: strides, allocation and the division of work.
#include <algorithm>
#include <atomic>

#include "columns_runtime.h"
#include "operators.h"

namespace evenkeel {
namespace {

constexpr int64_t unit = 32768;  // elements that one task maps

// How a tensor is walked: as one run of elements, in rows, or in columns.
enum class Walk { flat, rows, columns, none };

Walk walk_of(const Tensor& t) {
  if (t.is_contiguous()) return Walk::flat;
  const auto sizes = t.sizes(), strides = t.strides();
  if (sizes.size() != 2) return Walk::none;
  if (strides[1] == 1 || sizes[1] == 1) return Walk::rows;
  return strides[0] == 1 && strides[1] >= sizes[0] ? Walk::columns : Walk::none;
}

// A parameter repeated until there are 16 of them, and then for 16 more.
std::vector<double> periodic(const Tensor& parameter, int64_t columns, int64_t period) {
  STD_TORCH_CHECK(parameter.scalar_type() == ScalarType::Double && parameter.numel() == columns,
                  "evenkeel: expected float64 parameters with one element a column");
  const Tensor source = as_contiguous(parameter);
  const double* p = static_cast<const double*>(source.data_ptr());
  std::vector<double> values(static_cast<size_t>(period + 16));
  for (size_t i = 0; i < values.size(); ++i) values[i] = p[i % columns];
  return values;
}

// The pointer to element i of memory that holds numbers of a size.
template <class Pointer>
Pointer element(Pointer p, int64_t i, int64_t size) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  return static_cast<Byte*>(p) + i * size;
}

struct Sides {
  const void* x;
  void* y;
  int64_t x_size, y_size;
  std::atomic<bool>& infinite;  // whether x holds an infinity

  // Maps n elements, from one of x to one of y.
  void map(const ColumnMap& map, int64_t from, int64_t to, int64_t n, int64_t phase) const {
    if (columns_kernels().map(map, element(x, from, x_size), element(y, to, y_size), n, phase)) infinite = true;
  }
};

void map_flat(const ColumnMap& map, const Sides& s, int64_t n) {
  parallel_for((n + unit - 1) / unit, 1, [&](int64_t begin, int64_t end) {
    const int64_t i = begin * unit, stop = std::min(end * unit, n);
    s.map(map, i, i, stop - i, i % map.period);
  });
}

void map_rows(const ColumnMap& map, const Sides& s, const Tensor& x, const Tensor& y) {
  const int64_t columns = x.sizes()[1], x_stride = x.strides()[0], y_stride = y.strides()[0];
  parallel_for(x.sizes()[0], std::max<int64_t>(1, unit / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) s.map(map, row * x_stride, row * y_stride, columns, 0);
  });
}

void map_columns(const ColumnMap& map, const Sides& s, const Tensor& x, const Tensor& y) {
  const int64_t rows = x.sizes()[0], x_stride = x.strides()[1], y_stride = y.strides()[1];
  const int64_t parts = (rows + unit - 1) / unit;
  parallel_for(x.sizes()[1] * parts, std::max<int64_t>(1, unit / rows), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task / parts, row = task % parts * unit;
      double same[3][32];
      const double* const parameters[] = {map.shift, map.scale, map.offset};
      for (int i = 0; i < 3; ++i) std::fill_n(same[i], 32, parameters[i][column]);
      ColumnMap own = map;
      own.shift = same[0], own.scale = same[1], own.offset = same[2], own.period = 16;
      s.map(own, column * x_stride + row, column * y_stride + row, std::min(unit, rows - row), 0);
    }
  });
}

Tensor empty_by_columns(int64_t rows, int64_t columns, ScalarType dtype) {
  return torch::stable::transpose(empty({columns, rows}, dtype), 0, 1);
}

}  // namespace

void column_affine_out(const Tensor& x, const Tensor& shift, const Tensor& scale, const std::optional<Tensor>& offset,
                       std::optional<double> low, std::optional<double> high, const Tensor& out,
                       const std::optional<Tensor>& infinite) {
  STD_TORCH_CHECK(shape_of(x) == shape_of(out) && !x.sizes().empty(), "evenkeel: out must have the shape of x");
  const Number to = number_of(out);
  STD_TORCH_CHECK(static_cast<int>(to) <= static_cast<int>(Number::float16), "evenkeel: out must be floating");
  STD_TORCH_CHECK(!infinite || (infinite->scalar_type() == ScalarType::Bool && infinite->numel() == 1),
                  "evenkeel: expected one Boolean for whether x holds an infinity");
  if (x.numel() == 0) return;
  Walk from = walk_of(x), into = walk_of(out);
  const bool by_columns = from == Walk::columns && into == Walk::columns;
  const bool by_rows = (from == Walk::flat || from == Walk::rows) && (into == Walk::flat || into == Walk::rows);
  if (!by_columns && !by_rows) {  // a layout of its own: mapped in the one, then copied
    Tensor result = column_affine(x, shift, scale, offset, low, high, out.scalar_type(), infinite);
    Tensor target = out;
    torch::stable::copy_(target, result);
    return;
  }
  const int64_t columns = x.sizes()[x.sizes().size() - 1];
  const int64_t period = columns * ((15 + columns) / columns);
  const std::vector<double> shifts = periodic(shift, columns, period), scales = periodic(scale, columns, period);
  // -0 changes nothing, not even the sign of a zero
  const std::vector<double> offsets = offset ? periodic(*offset, columns, period)
                                             : std::vector<double>(static_cast<size_t>(period + 16), -0.0);
  std::atomic<bool> found = false;
  const Sides sides{x.data_ptr(), out.data_ptr(), size_of(number_of(x)), size_of(to), found};
  ColumnMap map{number_of(x), to, shifts.data(), scales.data(), offsets.data(), period, low && high};
  map.low = low.value_or(0), map.high = high.value_or(0);
  map.stream = out.numel() * sides.y_size >= streamed_bytes && sides.x != sides.y;
  if (by_columns) {
    map_columns(map, sides, x, out);
  } else if (from == Walk::flat && into == Walk::flat) {
    map_flat(map, sides, x.numel());
  } else {
    map_rows(map, sides, x, out);
  }
  if (infinite && found) *static_cast<bool*>(infinite->data_ptr()) = true;
}

Tensor column_affine(const Tensor& x, const Tensor& shift, const Tensor& scale, const std::optional<Tensor>& offset,
                     std::optional<double> low, std::optional<double> high, ScalarType dtype,
                     const std::optional<Tensor>& infinite) {
  const Walk walk = walk_of(x);
  const Tensor source = walk == Walk::none ? as_contiguous(x) : x;
  Tensor y = walk == Walk::columns ? empty_by_columns(x.sizes()[0], x.sizes()[1], dtype) : empty(shape_of(x), dtype);
  column_affine_out(source, shift, scale, offset, low, high, y, infinite);
  return y;
}

}  // namespace evenkeel
