// The affine map of columns: strides, allocation and the division of work; map_kernels.cpp computes.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "columns/kernels.h"
#include "columns/operators.h"
#include "core/caches.h"

namespace evenkeel {
namespace {

constexpr int64_t unit = 32768;     // elements that one task maps
constexpr int64_t short_row = 192;  // columns up to which rows are packed: from about 200 on the copies cost more

// How a tensor is walked: as one run of elements, in rows, or in columns (at least two, of two rows or more).
enum class Walk { flat, rows, columns, none };

Walk walk_of(const Tensor& t) {
  if (t.is_contiguous()) return Walk::flat;
  const auto sizes = t.sizes(), strides = t.strides();
  if (sizes.size() != 2) return Walk::none;
  if (strides[1] == 1 || sizes[1] == 1) return Walk::rows;
  return sizes[0] > 1 && strides[0] == 1 && strides[1] >= sizes[0] ? Walk::columns : Walk::none;
}

// Whether one walk goes through both.
bool together(Walk a, Walk b) {
  return a != Walk::none && b != Walk::none && (a == Walk::columns) == (b == Walk::columns);
}

// A parameter repeated until there are 16 of them, and then for 16 more.
std::vector<double> periodic(const Tensor& parameter, int64_t columns, int64_t period) {
  STD_TORCH_CHECK(parameter.scalar_type() == ScalarType::Double && parameter.numel() == columns,
                  "evenkeel: expected float64 parameters with one element a column");
  const Tensor source = as_contiguous(parameter);
  const double* p = static_cast<const double*>(memory_of(source));
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
    const ColumnMapKernel kernel = EVENKEEL_BEST(column_map_kernel);
    if (kernel(map, element(x, from, x_size), element(y, to, y_size), n, phase)) infinite = true;
  }
};

void map_flat(const ColumnMap& map, const Sides& s, int64_t n) {
  parallel_for(ceil_divide(n, unit), 1, [&](int64_t begin, int64_t end) {
    const int64_t i = begin * unit, stop = std::min(end * unit, n);
    s.map(map, i, i, stop - i, i % map.period);
  });
}

// Copies rows of `bytes` bytes to others.
template <int64_t bytes>
void copy_rows(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) std::memcpy(to + row * to_stride, from + row * from_stride, bytes);
}
void copy_rows(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t rows, int64_t bytes) {
  switch (bytes) {
    case 1: return copy_rows<1>(from, from_stride, to, to_stride, rows);
    case 2: return copy_rows<2>(from, from_stride, to, to_stride, rows);
    case 4: return copy_rows<4>(from, from_stride, to, to_stride, rows);
    case 8: return copy_rows<8>(from, from_stride, to, to_stride, rows);
  }
  for (int64_t row = 0; row < rows; ++row) std::memcpy(to + row * to_stride, from + row * from_stride, bytes);
}

// Short rows are packed: a call of the kernel for each would cost more than what it does.
void map_short_rows(const ColumnMap& map, const Sides& s, const Tensor& x, const Tensor& y) {
  constexpr int64_t elements = 2048;
  const int64_t columns = x.sizes()[1], x_stride = x.strides()[0], y_stride = y.strides()[0], step = elements / columns;
  const bool pack = x_stride != columns, unpack = y_stride != columns;
  ColumnMap own = map;
  own.stream = map.stream && !unpack;
  parallel_for(ceil_divide(x.sizes()[0], step), unit / elements, [&](int64_t begin, int64_t end) {
    char packed[elements * 8], mapped[elements * 8];
    for (int64_t row = begin * step; row < std::min(end * step, x.sizes()[0]); row += step) {
      const int64_t rows = std::min(step, x.sizes()[0] - row);
      const char* const from = static_cast<const char*>(element(s.x, row * x_stride, s.x_size));
      char* const to = static_cast<char*>(element(s.y, row * y_stride, s.y_size));
      if (pack) copy_rows(from, x_stride * s.x_size, packed, columns * s.x_size, rows, columns * s.x_size);
      const Sides inner{pack ? packed : from, unpack ? mapped : to, s.x_size, s.y_size, s.infinite};
      inner.map(own, 0, 0, rows * columns, 0);
      if (unpack) copy_rows(mapped, columns * s.y_size, to, y_stride * s.y_size, rows, columns * s.y_size);
    }
  });
}

void map_rows(const ColumnMap& map, const Sides& s, const Tensor& x, const Tensor& y) {
  const int64_t columns = x.sizes()[1], x_stride = x.strides()[0], y_stride = y.strides()[0];
  if (columns <= short_row) return map_short_rows(map, s, x, y);
  parallel_for(x.sizes()[0], std::max<int64_t>(1, unit / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) s.map(map, row * x_stride, row * y_stride, columns, 0);
  });
}

void map_columns(const ColumnMap& map, const Sides& s, const Tensor& x, const Tensor& y) {
  const int64_t rows = x.sizes()[0], x_stride = x.strides()[1], y_stride = y.strides()[1];
  const int64_t parts = ceil_divide(rows, unit);
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

struct Parameters {
  const Tensor& shift;
  const Tensor& scale;
  const OptionalTensor& offset;
  std::optional<double> low, high;
  const OptionalTensor& infinite;
};

// Maps x to a tensor of its shape that is walked together with it.
void map_together(const Tensor& x, const Parameters& p, const Tensor& y) {
  STD_TORCH_CHECK(sizes_of(x) == sizes_of(y) && !x.sizes().empty(), "evenkeel: out must have the shape of x");
  const DType to = dtype_of(y);
  STD_TORCH_CHECK(is_floating(to), "evenkeel: out must be floating");
  STD_TORCH_CHECK(!p.infinite || (p.infinite->scalar_type() == ScalarType::Bool && p.infinite->numel() == 1),
                  "evenkeel: expected one Boolean for whether x holds an infinity");
  if (x.numel() == 0) return;
  const Walk from = walk_of(x), into = walk_of(y);
  STD_TORCH_CHECK(together(from, into), "evenkeel: these layouts cannot be walked together");
  const int64_t columns = x.sizes()[x.sizes().size() - 1];
  const int64_t period = columns * ceil_divide(16, columns);
  const std::vector<double> shifts = periodic(p.shift, columns, period), scales = periodic(p.scale, columns, period);
  // -0 changes nothing, not even the sign of a zero
  const std::vector<double> offsets = p.offset ? periodic(*p.offset, columns, period)
                                               : std::vector<double>(static_cast<size_t>(period + 16), -0.0);
  std::atomic<bool> infinite = false;
  const Sides sides{memory_of(x), memory_of(y), size_of(dtype_of(x)), size_of(to), infinite};
  ColumnMap map{dtype_of(x), to, shifts.data(), scales.data(), offsets.data(), period, p.low || p.high};
  constexpr double infinity = std::numeric_limits<double>::infinity();
  map.low = p.low.value_or(-infinity), map.high = p.high.value_or(infinity);
  // half a line at a time, past the caches is slower
  map.stream = sides.y_size >= 4 && sides.x != sides.y && is_past_caches(bytes_of(x) + bytes_of(y));
  if (from == Walk::columns) {
    map_columns(map, sides, x, y);
  } else if (from == Walk::flat && into == Walk::flat) {
    map_flat(map, sides, x.numel());
  } else {
    map_rows(map, sides, x, y);
  }
  if (p.infinite && infinite) *static_cast<bool*>(memory_of(*p.infinite)) = true;
}

// A new tensor, stored by columns where x is.
Tensor map_to_new(const Tensor& x, const Parameters& p, ScalarType dtype) {
  const Walk walk = walk_of(x);
  Tensor y = walk == Walk::columns ? empty_by_columns(x.sizes()[0], x.sizes()[1], dtype) : empty(sizes_of(x), dtype);
  map_together(walk == Walk::none ? as_contiguous(x) : x, p, y);
  return y;
}

}  // namespace

Tensor column_affine(const Tensor& x, const Tensor& shift, const Tensor& scale, const OptionalTensor& offset,
                     std::optional<double> low, std::optional<double> high, ScalarType dtype,
                     const OptionalTensor& infinite) {
  return map_to_new(x, {shift, scale, offset, low, high, infinite}, dtype);
}

void column_affine_out(const Tensor& x, const Tensor& shift, const Tensor& scale, const OptionalTensor& offset,
                       std::optional<double> low, std::optional<double> high, const Tensor& out,
                       const OptionalTensor& infinite) {
  const Parameters parameters{shift, scale, offset, low, high, infinite};
  if (x.numel() == 0 || together(walk_of(x), walk_of(out))) return map_together(x, parameters, out);
  STD_TORCH_CHECK(sizes_of(x) == sizes_of(out), "evenkeel: out must have the shape of x");
  Tensor target = out;  // a layout of its own: mapped in that of x, then copied
  torch::stable::copy_(target, map_to_new(x, parameters, out.scalar_type()));
}

}  // namespace evenkeel
