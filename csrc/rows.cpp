// The operators of the row pattern: shapes, strides, allocation and the division of work; rows_kernels.cpp computes.
#include "operators.h"
#include "runtime.h"

namespace evenkeel {
namespace {

const RowsKernels& kernels() {
#if defined(__x86_64__)
  if (simd() == Simd::avx512) return rows_kernels_avx512;
  if (simd() == Simd::avx2) return rows_kernels_avx2;
#endif
  return rows_kernels_baseline;
}

// Merges the leading axes that are laid out as one; false where the rows need a copy.
bool layout_rows(const Tensor& t, int64_t axes, RowLayout& layout) {
  const auto sizes = t.sizes();
  const auto strides = t.strides();
  const int64_t ndim = static_cast<int64_t>(sizes.size());
  int64_t expected = 1;
  for (int64_t axis = ndim - 1; axis >= ndim - axes; --axis) {
    if (sizes[axis] != 1 && strides[axis] != expected) return false;
    expected *= sizes[axis];
  }
  layout.axes = 0;
  for (int64_t axis = 0; axis < ndim - axes; ++axis) {
    if (sizes[axis] == 1) continue;
    const int last = layout.axes - 1;
    if (last >= 0 && layout.strides[last] == strides[axis] * sizes[axis]) {
      layout.sizes[last] *= sizes[axis];
      layout.strides[last] = strides[axis];
    } else {
      if (layout.axes == RowLayout::max_axes) return false;
      layout.sizes[layout.axes] = sizes[axis];
      layout.strides[layout.axes++] = strides[axis];
    }
  }
  return true;
}

// The tensor itself, or a contiguous copy where its rows are not dense.
Tensor with_dense_rows(const Tensor& t, int64_t axes, RowLayout& layout) {
  if (layout_rows(t, axes, layout)) return t;
  Tensor copy = as_contiguous(t);
  layout_rows(copy, axes, layout);
  return copy;
}

RowsSpec spec_of(const Tensor& x, int64_t axes, bool center, double eps, int64_t eps_mode) {
  const auto sizes = x.sizes();
  RowsSpec spec{1, 1, center, eps, static_cast<EpsMode>(eps_mode)};
  const int64_t leading = static_cast<int64_t>(sizes.size()) - axes;
  STD_TORCH_CHECK(axes >= 0 && leading >= 0, "evenkeel: axes must lie between 0 and the input's dimensions");
  for (int64_t axis = 0; axis < leading; ++axis) spec.rows *= sizes[axis];
  for (size_t axis = leading; axis < sizes.size(); ++axis) spec.features *= sizes[axis];
  return spec;
}

// weight + offset or bias in the arithmetic type: the tensor's own memory where nothing changes.
class Parameter {
 public:
  Parameter(const std::optional<Tensor>& parameter, double offset, int64_t features, bool to_double) {
    if (!parameter) return;
    STD_TORCH_CHECK(parameter->numel() == features, "evenkeel: weight and bias must have one element a feature");
    source_ = as_contiguous(*parameter);
    const DType dtype = dtype_of(*source_);
    data_ = source_->data_ptr();
    if (offset == 0 && dtype == (to_double ? DType::float64 : DType::float32)) return;
    converted_.reset(new double[static_cast<size_t>(features)]);
    kernels().widen(data_, dtype, offset, features, to_double, converted_.get());
    data_ = converted_.get();
  }
  const void* data() const { return data_; }

 private:
  std::optional<Tensor> source_;
  std::unique_ptr<double[]> converted_;
  const void* data_ = nullptr;
};

// About 16 K elements a chunk: below that, starting a thread costs more than it saves.
int64_t rows_per_chunk(int64_t features) { return features >= 16384 ? 1 : 16384 / features; }

std::vector<int64_t> sizes_of(const Tensor& t) {
  const auto sizes = t.sizes();
  return {sizes.begin(), sizes.end()};
}

void finish(const std::vector<double>& partial, int64_t tasks, int64_t features, Tensor& out) {
  const DType dtype = dtype_of(out);
  void* data = out.data_ptr();
  parallel_for(features, 4096, [&](int64_t begin, int64_t end) {
    kernels().finish(partial.data(), tasks, padded(features), begin, end, dtype, data);
  });
}

Tensor normalize_rows(const RowsSpec& spec, const Tensor& x, const std::optional<Tensor>& weight,
                      const std::optional<Tensor>& bias, int64_t axes, double weight_offset, void* statistics) {
  RowsForward a;
  a.spec = spec;
  a.dtype = dtype_of(x);
  Tensor y = empty(sizes_of(x), x.scalar_type());
  if (spec.rows == 0 || spec.features == 0) return y;
  const Tensor source = with_dense_rows(x, axes, a.x_layout);
  const Parameter w(weight, weight_offset, spec.features, a.dtype == DType::float64);
  const Parameter b(bias, 0.0, spec.features, a.dtype == DType::float64);
  a.x = source.data_ptr();
  a.weight = w.data();
  a.bias = b.data();
  a.y = y.data_ptr();
  a.statistics = statistics;
  parallel_for(spec.rows, rows_per_chunk(spec.features),
               [&](int64_t begin, int64_t end) { kernels().forward(a, begin, end); });
  return y;
}

}  // namespace

std::tuple<Tensor, Tensor> rows_forward(const Tensor& x, const std::optional<Tensor>& weight,
                                        const std::optional<Tensor>& bias, int64_t axes, bool center, double eps,
                                        int64_t eps_mode, double weight_offset) {
  const RowsSpec spec = spec_of(x, axes, center, eps, eps_mode);
  const bool is_double = dtype_of(x) == DType::float64;
  Tensor statistics = empty({spec.rows, spec.statistics_width()}, is_double ? ScalarType::Double : ScalarType::Float);
  return {normalize_rows(spec, x, weight, bias, axes, weight_offset, statistics.data_ptr()), statistics};
}

Tensor rows_inference(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                      int64_t axes, bool center, double eps, int64_t eps_mode, double weight_offset) {
  return normalize_rows(spec_of(x, axes, center, eps, eps_mode), x, weight, bias, axes, weight_offset, nullptr);
}

std::tuple<Tensor, Tensor, Tensor> rows_backward(const Tensor& dy, const Tensor& x,
                                                 const std::optional<Tensor>& weight,
                                                 const std::optional<Tensor>& bias, const Tensor& statistics,
                                                 int64_t axes, bool center, double eps, int64_t eps_mode,
                                                 double weight_offset, bool need_dx, bool need_dweight,
                                                 bool need_dbias) {
  RowsBackward a;
  a.spec = spec_of(x, axes, center, eps, eps_mode);
  a.dtype = dtype_of(x);
  STD_TORCH_CHECK(dtype_of(dy) == a.dtype && dy.numel() == x.numel(), "evenkeel: dy must have x's dtype and shape");
  const int64_t features = a.spec.features;
  need_dweight = need_dweight && weight;
  need_dbias = need_dbias && bias;
  Tensor dx = empty(need_dx ? sizes_of(x) : std::vector<int64_t>{0}, x.scalar_type());
  Tensor dweight = need_dweight ? empty(sizes_of(*weight), weight->scalar_type()) : empty({0}, x.scalar_type());
  Tensor dbias = need_dbias ? empty(sizes_of(*bias), bias->scalar_type()) : empty({0}, x.scalar_type());
  if (features == 0) return {dx, dweight, dbias};

  // How rows are divided into tasks depends on their number alone, never on the threads.
  constexpr int64_t most_tasks = 32, fewest_rows = 64;
  const int64_t share = (a.spec.rows + most_tasks - 1) / most_tasks;
  a.rows_per_task = share > fewest_rows ? share : fewest_rows;
  const int64_t tasks = (a.spec.rows + a.rows_per_task - 1) / a.rows_per_task;
  a.padded_features = padded(features);
  std::vector<double> dweight_partial(need_dweight ? tasks * a.padded_features : 0);
  std::vector<double> dbias_partial(need_dbias ? tasks * a.padded_features : 0);
  a.dweight_partial = need_dweight ? dweight_partial.data() : nullptr;
  a.dbias_partial = need_dbias ? dbias_partial.data() : nullptr;

  const Tensor source = with_dense_rows(x, axes, a.x_layout);
  const Tensor upstream = with_dense_rows(dy, axes, a.dy_layout);
  const Parameter w(weight, weight_offset, features, a.dtype == DType::float64);
  const Tensor saved = as_contiguous(statistics);
  a.x = source.data_ptr();
  a.dy = upstream.data_ptr();
  a.weight = w.data();
  a.statistics = saved.data_ptr();
  a.dx = need_dx ? dx.data_ptr() : nullptr;
  const int64_t tasks_per_chunk = (rows_per_chunk(features) + a.rows_per_task - 1) / a.rows_per_task;
  parallel_for(tasks, tasks_per_chunk, [&](int64_t begin, int64_t end) {
    kernels().backward(a, begin, end);
  });
  if (need_dweight) finish(dweight_partial, tasks, features, dweight);
  if (need_dbias) finish(dbias_partial, tasks, features, dbias);
  return {dx, dweight, dbias};
}

}  // namespace evenkeel
