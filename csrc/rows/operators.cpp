// The operators of the row pattern: shapes, strides, allocation and the division of work; the *_kernels.cpp compute.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <initializer_list>

#include "core/caches.h"
#include "core/scratch.h"
#include "rows/direct.h"
#include "rows/operators.h"

namespace evenkeel {
namespace {

// Beyond these the output does not determine the normalized row: its errors would grow by as much.
constexpr double smallest_recomputable_weight = 0x1p-10, most_shift_of_weight = 16;

const RowsKernels& kernels() { return EVENKEEL_BEST(rows_kernels); }

bool layout_rows(const Tensor& t, int64_t axes, RowLayout& layout) {
  const auto sizes = t.sizes();
  return lay_out(sizes.data(), t.strides().data(), static_cast<int64_t>(sizes.size()), axes, layout);
}

Values values_of(const Tensor& t) { return {memory_of(t), floating_dtype_of(t)}; }

// Rows to read: the tensor's own, or a contiguous copy's where they are not dense.
class Source {
 public:
  Source() = default;
  Source(const Tensor& t, int64_t axes) : tensor_(t) {
    rows_.dtype = floating_dtype_of(t);
    if (!layout_rows(t, axes, rows_.layout)) {
      tensor_ = as_contiguous(t);
      layout_rows(*tensor_, axes, rows_.layout);
    }
    rows_.data = memory_of(*tensor_);
  }
  const Rows& rows() const { return rows_; }

 private:
  OptionalTensor tensor_;
  Rows rows_;
};

// The rows of a new, contiguous tensor.
Rows rows_of(Tensor& t, const RowsSpec& spec) {
  return {memory_of(t), dtype_of(t), RowLayout{1, {spec.rows}, {spec.features}}};
}

RowsSpec spec_of(const Tensor& x, int64_t axes, const RowsOptions& options) {
  const auto sizes = x.sizes();
  STD_TORCH_CHECK(options.statistic >= Statistic::rms && options.statistic <= Statistic::l2,
                  "evenkeel: statistic must be 0 (rms), 1 (moments) or 2 (l2)");
  check_eps_mode(options.eps_mode);
  RowsSpec spec{options, 1, 1};
  const int64_t leading = static_cast<int64_t>(sizes.size()) - axes;
  STD_TORCH_CHECK(axes >= 0 && leading >= 0, "evenkeel: axes must lie between 0 and the input's dimensions");
  for (int64_t axis = 0; axis < leading; ++axis) spec.rows *= sizes[axis];
  for (size_t axis = leading; axis < sizes.size(); ++axis) spec.features *= sizes[axis];
  return spec;
}

// A parameter's own memory, or a contiguous copy's.
class Contiguous {
 public:
  Contiguous(const OptionalTensor& parameter, int64_t features) {
    if (!parameter) return;
    STD_TORCH_CHECK(parameter->numel() == features, "evenkeel: weight and bias must have one element a feature");
    tensor_ = as_contiguous(*parameter);
  }
  Values values() const { return tensor_ ? values_of(*tensor_) : Values(); }

 private:
  OptionalTensor tensor_;
};

// weight + offset or bias in the compute dtype: its own memory where nothing changes.
class Parameter {
 public:
  Parameter(const Values& parameter, double offset, int64_t features, bool to_double)
      : is_as_given_(!parameter.data ||
                     (offset == 0 && parameter.dtype == (to_double ? DType::float64 : DType::float32))),
        converted_(is_as_given_ ? 0 : to_double ? features : ceil_divide(features, 2)),
        data_(is_as_given_ ? parameter.data : converted_.data()) {
    if (!is_as_given_) kernels().widen(parameter.data, parameter.dtype, offset, features, to_double, converted_.data());
  }
  const void* data() const { return data_; }

 private:
  const bool is_as_given_;
  const Scratch converted_;
  const void* const data_;
};

// A thread's own, and its call with them: what another core wrote last takes it longer to read than to compute.
class OwnParameters {
 public:
  template <class Call>
  OwnParameters(Call& own, const Values& weight, const Values& bias)
      : weight_(weight, own.spec.options.weight_offset, own.spec.features, own.is_double),
        bias_(bias, 0.0, own.spec.features, own.is_double) {
    own.weight = weight_.data();
    own.bias = bias_.data();
  }

 private:
  const Parameter weight_, bias_;
};

// About 16 K elements a chunk: below that, starting a thread costs more than it saves.
int64_t rows_per_chunk(int64_t features) { return features >= 16384 ? 1 : 16384 / features; }

// Bytes of a row's element in all that a call moves.
int64_t moved_bytes(std::initializer_list<Rows> tensors) {
  int64_t bytes = 0;
  for (const Rows& each : tensors) bytes += each.data ? size_of(each.dtype) : 0;
  return bytes;
}

// Chooses what depends on the caches, for a call that moves `bytes` for each element of its rows. What is written over
// the input, which is in them, is not written past them; nor are short rows that share cache lines.
template <class Call>
void set_caching(Call& a, int64_t bytes, const Rows& out, bool apart) {
  constexpr int64_t short_row = 200;  // elements
  const int64_t all = a.spec.rows * a.spec.features * bytes, row = a.spec.features * size_of(a.x.dtype);
  a.fetched = all > caches().second && fetches_ahead(row, apart);
  const bool shares_lines = row % cache_line && a.spec.features < short_row;
  a.group_bytes = caches().first * 2 / 3;
  a.streamed = out.data && out.data != a.x.data && !shares_lines && is_past_caches(all);
}

void check_shape(const char* name, const Tensor& t, const Tensor& x) {
  STD_TORCH_CHECK(sizes_of(t) == sizes_of(x), "evenkeel: ", name, " must have x's shape");
}

// y's dtype: x's, or the promoted one of x and weight where x is rounded early.
ScalarType output_dtype(const Tensor& x, const OptionalTensor& weight, const RowsOptions& options) {
  return options.early && weight && weight->scalar_type() != x.scalar_type() ? ScalarType::Float : x.scalar_type();
}

template <class C>
void check_recomputable(const C* weight, const C* bias, int64_t features) {
  for (int64_t i = 0; i < features; ++i) {
    const C scale = std::abs(weight[i]), shift = bias ? std::abs(bias[i]) : 0;
    STD_TORCH_CHECK(scale >= smallest_recomputable_weight && shift <= most_shift_of_weight * scale,
                    "evenkeel: memory_efficient recomputes the normalized values from the output, which needs every "
                    "|weight_offset + weight| to be at least 2^-10 and every |bias| at most 16 times that, but at "
                    "index ", i, " they are ", scale, " and ", shift, "; pass memory_efficient=False");
  }
}

void check_recomputable(RowsForward a, const Values& weight, const Values& bias) {
  const OwnParameters parameters(a, weight, bias);
  const auto check = [&](auto number) {
    using C = decltype(number);
    check_recomputable(static_cast<const C*>(a.weight), static_cast<const C*>(a.bias), a.spec.features);
  };
  a.is_double ? check(double{}) : check(float{});
}

// Fills in the remaining fields (all but the spec and the places of the rows and statistics) and runs the forward.
void run_forward(RowsForward& a, const Values& weight, const Values& bias, bool recomputable) {
  if (a.spec.rows == 0 || a.spec.features == 0) return;
  a.is_double = a.x.dtype == DType::float64;
  const RowLayout& layout = a.x.layout;
  const bool apart = layout.axes && layout.strides[layout.axes - 1] != a.spec.features;
  set_caching(a, moved_bytes({a.x, a.y, a.residual, a.sum}), a.y, apart);
  if (recomputable && weight.data) check_recomputable(a, weight, bias);
  parallel_for(a.spec.rows, rows_per_chunk(a.spec.features), [&](int64_t begin, int64_t end) {
    RowsForward own = a;
    const OwnParameters parameters(own, weight, bias);
    kernels().forward(own, begin, end);
  });
}

void finish(const double* partial, int64_t tasks, int64_t features, const Values& out) {
  parallel_for(features, 4096, [&](int64_t begin, int64_t end) {
    kernels().finish(partial, tasks, padded(features), begin, end, out.dtype, out.data);
  });
}

// How rows are divided into tasks depends on their number alone, never on the threads: 32 tasks of 64 rows and more.
// Each costs sums of its own over the parameters, so that fewer rows, down to 16, only make up 8 tasks.
int64_t rows_per_task(int64_t rows) {
  return std::max(ceil_divide(rows, 32), std::clamp<int64_t>(ceil_divide(rows, 8), 16, 64));
}

// The backward of a few long rows: of one task, or where threads would wait for another's tasks. False where it takes
// tasks.
bool run_few(const RowsBackward& a, const Values& weight, const Values& dweight, const Values& dbias) {
  const int64_t rows = a.spec.rows, features = a.spec.features, threads = torch::stable::get_num_threads();
  if (rows == 0 || rows > most_few_rows || features < fewest_long_features || a.streamed || !is_plain(a)) return false;
  const int64_t tasks = ceil_divide(rows, a.rows_per_task);
  const int64_t of_busiest = std::min(rows, ceil_divide(tasks, threads) * a.rows_per_task);
  if (tasks > 1 && 4 * of_busiest * threads <= 5 * rows) return false;
  double slopes[2 * most_few_rows];  // any compute dtype's
  std::atomic<bool> usual{true};
  const auto with_parameters = [&](const auto& body) {
    RowsBackward own = a;
    const OwnParameters parameters(own, weight, Values());
    body(own);
  };
  parallel_for(rows, rows_per_chunk(features), [&](int64_t begin, int64_t end) {
    with_parameters([&](const RowsBackward& own) {
      if (!kernels().few_slopes(own, slopes, begin, end)) usual = false;
    });
  });
  if (!usual) return false;
  const int64_t blocks_of_chunk = ceil_divide(rows_per_chunk(features_of_block), rows);
  parallel_for(ceil_divide(features, features_of_block), blocks_of_chunk, [&](int64_t begin, int64_t end) {
    with_parameters([&](const RowsBackward& own) { kernels().few_blocks(own, slopes, dweight, dbias, begin, end); });
  });
  return true;
}

// Fills in the remaining fields and runs the backward, which writes the gradients that have a place.
void run_backward(RowsBackward& a, const Values& weight, const Values& bias, const Values& dweight,
                  const Values& dbias) {
  const int64_t features = a.spec.features;
  if (features == 0) return;
  a.is_double = a.x.dtype == DType::float64;
  const int64_t bytes = moved_bytes({a.x, a.dx, a.dy, a.residual, a.dsum});
  set_caching(a, bytes, a.dx, false);
  if (2 * bytes * a.spec.rows * features > cached_bytes()) a.group_bytes = 0;  // from afar rows come best one by one
  a.rows_per_task = rows_per_task(a.spec.rows);
  const int64_t tasks = ceil_divide(a.spec.rows, a.rows_per_task);
  if (run_few(a, weight, dweight, dbias)) return;
  a.padded_features = padded(features);
  const int64_t sums = tasks * a.padded_features;
  const Scratch dweight_partial(dweight.data ? sums : 0), dbias_partial(dbias.data ? sums : 0);
  a.dweight_partial = dweight_partial.data();
  a.dbias_partial = dbias_partial.data();
  const int64_t tasks_per_chunk = ceil_divide(rows_per_chunk(features), a.rows_per_task);
  parallel_for(tasks, tasks_per_chunk, [&](int64_t begin, int64_t end) {
    RowsBackward own = a;
    const OwnParameters parameters(own, weight, a.from_output ? bias : Values());
    kernels().backward(own, begin, end);
  });
  if (dweight.data) finish(a.dweight_partial, tasks, features, dweight);
  if (dbias.data) finish(a.dbias_partial, tasks, features, dbias);
}

// Runs the backward with tensors; returns dweight and dbias, each empty where it is not needed.
std::tuple<Tensor, Tensor> parameter_gradients(RowsBackward& a, const OptionalTensor& weight,
                                               const OptionalTensor& bias, const Tensor& statistics,
                                               bool need_dweight, bool need_dbias) {
  const auto gradient = [&](const OptionalTensor& parameter, bool needed) {
    return needed && parameter ? empty(sizes_of(*parameter), parameter->scalar_type())
                               : empty({0}, statistics.scalar_type());
  };
  STD_TORCH_CHECK(statistics.scalar_type() == opmath_of(a.x.dtype) &&
                      statistics.numel() == a.spec.rows * a.spec.statistics_width(),
                  "evenkeel: statistics must be those that the forward returned for this input and these options");
  const Tensor dweight = gradient(weight, need_dweight), dbias = gradient(bias, need_dbias);
  const Tensor saved = as_contiguous(statistics);
  const Contiguous w(weight, a.spec.features), b(bias, a.spec.features);
  a.statistics = memory_of(saved);
  run_backward(a, w.values(), b.values(), need_dweight && weight ? values_of(dweight) : Values(),
               need_dbias && bias ? values_of(dbias) : Values());
  return {dweight, dbias};
}

// Normalizes x into a.y.
void run_forward(RowsForward& a, const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                 int64_t axes, bool recomputable = false) {
  const Source source(x, axes);
  a.x = source.rows();
  const Contiguous w(weight, a.spec.features), b(bias, a.spec.features);
  run_forward(a, w.values(), b.values(), recomputable);
}

// Normalizes x into a new tensor.
Tensor normalize_rows(RowsForward& a, const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                      int64_t axes, bool recomputable = false) {
  Tensor y = empty(sizes_of(x), output_dtype(x, weight, a.spec.options), a.residual.data ? 4 : 2);
  a.y = rows_of(y, a.spec);
  run_forward(a, x, weight, bias, axes, recomputable);
  return y;
}

}  // namespace

const DirectRows direct_rows{
    layout_of_rows(),
    [](RowsForward& a, const Values& weight, const Values& bias) noexcept {
      return completes([&] { run_forward(a, weight, bias, false); });
    },
    [](RowsBackward& a, const Values& weight, const Values& bias, const Values& dweight, const Values& dbias) noexcept {
      return completes([&] { run_backward(a, weight, bias, dweight, dbias); });
    },
};

std::tuple<Tensor, Tensor, Tensor> rows_forward(const Tensor& x, const OptionalTensor& residual,
                                                const OptionalTensor& weight, const OptionalTensor& bias, int64_t axes,
                                                const RowsOptions& options, bool recomputable) {
  RowsForward a{.spec = spec_of(x, axes, options)};
  Tensor statistics = empty({a.spec.rows, a.spec.statistics_width()}, opmath_of(x));
  a.statistics = memory_of(statistics);
  if (!residual) {
    return {normalize_rows(a, x, weight, bias, axes, recomputable), empty({0}, x.scalar_type()), statistics};
  }
  STD_TORCH_CHECK(!options.early, "evenkeel: a sum with a residual is not rounded early");
  STD_TORCH_CHECK(sizes_of(x) == sizes_of(*residual) && opmath_of(x) == opmath_of(*residual),
                  "evenkeel: x and residual must have one shape, and both or neither be float64");
  Tensor sum = empty(sizes_of(x), residual->scalar_type(), 4);
  const Source addend(*residual, axes);
  a.residual = addend.rows();
  a.sum = rows_of(sum, a.spec);
  return {normalize_rows(a, x, weight, bias, axes, recomputable), sum, statistics};
}

// rows_inference is called before any check, for speed: what it raises sends the caller to the checks.
void check_sizes(const Tensor& x, const OptionalTensor& parameter, int64_t axes) {
  if (!parameter) return;
  const auto sizes = x.sizes(), its = parameter->sizes();
  bool same = static_cast<int64_t>(its.size()) == axes && axes <= static_cast<int64_t>(sizes.size());
  for (int64_t axis = 0; same && axis < axes; ++axis) same = its[axis] == sizes[sizes.size() - axes + axis];
  STD_TORCH_CHECK(same, "evenkeel: weight and bias must have the shape of the normalized axes");
}

Tensor rows_inference(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, int64_t axes,
                      const RowsOptions& options) {
  RowsForward a{.spec = spec_of(x, axes, options)};
  check_sizes(x, weight, axes);
  check_sizes(x, bias, axes);
  return normalize_rows(a, x, weight, bias, axes);
}

void rows_out(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, int64_t axes,
              const RowsOptions& options, const Tensor& out) {
  RowsForward a{.spec = spec_of(x, axes, options)};
  STD_TORCH_CHECK(out.scalar_type() == output_dtype(x, weight, options) && sizes_of(out) == sizes_of(x),
                  "evenkeel: out must have the result's dtype and shape");
  STD_TORCH_CHECK(layout_rows(out, axes, a.y.layout), "evenkeel: the rows of out must be dense");
  a.y.dtype = dtype_of(out);
  a.y.data = memory_of(out);
  run_forward(a, x, weight, bias, axes);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> rows_backward(const Tensor& dy, const OptionalTensor& dsum, const Tensor& x,
                                                         const OptionalTensor& residual, const OptionalTensor& weight,
                                                         const OptionalTensor& bias, const Tensor& statistics,
                                                         int64_t axes, const RowsOptions& options, bool need_dx,
                                                         bool need_dresidual, bool need_dweight, bool need_dbias,
                                                         bool from_output) {
  RowsBackward a{.spec = spec_of(x, axes, options), .from_output = from_output};
  check_shape("dy", dy, x);
  if (residual) check_shape("residual", *residual, x);
  if (dsum) check_shape("dsum", *dsum, x);
  const ScalarType dx_dtype = options.early ? x.scalar_type() : dy.scalar_type();
  const ScalarType dresidual_dtype = residual ? residual->scalar_type() : x.scalar_type();
  const bool shared = dx_dtype == dresidual_dtype;  // then dx serves both
  need_dx = need_dx || (shared && need_dresidual);
  need_dresidual = need_dresidual && !shared;
  const std::vector<int64_t> nothing{0};
  Tensor dx = empty(need_dx ? sizes_of(x) : nothing, dx_dtype, dsum ? 4 : 3);
  Tensor dresidual = empty(need_dresidual ? sizes_of(x) : nothing, dresidual_dtype);
  const Source source(x, axes), upstream(dy, axes);
  const Source addend = residual ? Source(*residual, axes) : Source();
  const Source more = dsum ? Source(*dsum, axes) : Source();
  a.x = source.rows();
  a.dy = upstream.rows();
  a.residual = addend.rows();
  a.dsum = more.rows();
  if (need_dx) a.dx = rows_of(dx, a.spec);
  if (need_dresidual) a.dresidual = rows_of(dresidual, a.spec);
  auto [dweight, dbias] = parameter_gradients(a, weight, bias, statistics, need_dweight, need_dbias);
  return {dx, dresidual, dweight, dbias};
}

}  // namespace evenkeel

const evenkeel::DirectRows* evenkeel_direct_rows() { return &evenkeel::direct_rows; }
