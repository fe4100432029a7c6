// The operators of the channel pattern: layout, allocation and the division of work; the *_kernels.cpp compute.
#include "channels_kernels.h"

#include <algorithm>

#include "operators.h"
#include "runtime.h"

namespace evenkeel {
namespace {

using torch::headeronly::MemoryFormat;

template <class Table>
const Table& of_level(const Table& baseline, const Table& avx2, const Table& avx512) {
  return simd() == Simd::avx512 ? avx512 : simd() == Simd::avx2 ? avx2 : baseline;
}

#if defined(__x86_64__)
const ChannelsKernels& kernels() {
  return of_level(channels_kernels_baseline, channels_kernels_avx2, channels_kernels_avx512);
}
const ChannelsWalk& walk(const ChannelsGeometry& g) {
  return g.columns ? of_level(channels_last_kernels_baseline, channels_last_kernels_avx2, channels_last_kernels_avx512)
                   : of_level(channels_first_kernels_baseline, channels_first_kernels_avx2, channels_first_kernels_avx512);
}
#else
const ChannelsKernels& kernels() { return channels_kernels_baseline; }
const ChannelsWalk& walk(const ChannelsGeometry& g) {
  return g.columns ? channels_last_kernels_baseline : channels_first_kernels_baseline;
}
#endif

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::vector<int64_t> sizes_of(const Tensor& t) {
  const auto sizes = t.sizes();
  return {sizes.begin(), sizes.end()};
}

// Strides of a dense tensor whose channels are innermost.
std::vector<int64_t> channels_last_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  int64_t stride = sizes[1];
  for (size_t axis = sizes.size(); axis-- > 2;) {
    strides[axis] = stride;
    stride *= sizes[axis];
  }
  strides[0] = stride;
  return strides;
}

bool has_channels_last(const Tensor& t) {
  const auto sizes = sizes_of(t);
  if ((sizes.size() != 4 && sizes.size() != 5)) return false;
  const auto wanted = channels_last_strides(sizes);
  const auto strides = t.strides();
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] != 1 && strides[axis] != wanted[axis]) return false;
  }
  return true;
}

// Contiguous, or channels-last where the input is that alone.
Tensor dense(const Tensor& t, bool last) {
  if (!last) return as_contiguous(t);
  if (has_channels_last(t)) return t;
  const bool planar = t.sizes().size() == 4;
  return torch::stable::contiguous(t, planar ? MemoryFormat::ChannelsLast : MemoryFormat::ChannelsLast3d);
}

Tensor empty_in_format(const Tensor& x, bool last) {
  const std::vector<int64_t> sizes = sizes_of(x);
  if (!last) return empty(sizes, x.scalar_type());
  std::vector<int64_t> inner(sizes);
  std::rotate(inner.begin() + 1, inner.begin() + 2, inner.end());
  const Tensor memory = empty(inner, x.scalar_type());
  const std::vector<int64_t> strides = channels_last_strides(sizes);
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(memory.get(), static_cast<int64_t>(sizes.size()), sizes.data(),
                                                        strides.data(), 0, &handle));
  return Tensor(handle);
}

ChannelsGeometry geometry_of(const Tensor& x, bool last, int64_t groups) {
  // With fewer positions than this, neighbouring channels are treated together as columns.
  constexpr int64_t few_positions = 16, few_batch_positions = 64, fewest_rows = 32, item = 4096, block = 32768;
  const auto sizes = x.sizes();
  STD_TORCH_CHECK(sizes.size() >= 2, "evenkeel: expected (batch, channels, ...)");
  STD_TORCH_CHECK(groups >= 0 && (groups == 0 || sizes[1] % groups == 0), "evenkeel: groups must divide the channels");
  ChannelsGeometry g{};
  const int64_t batch = sizes[0], channels = sizes[1];
  int64_t positions = 1;
  for (size_t axis = 2; axis < sizes.size(); ++axis) positions *= sizes[axis];
  g.channels = channels;
  g.groups = groups;
  g.positions = positions;
  const int64_t share = groups ? channels / groups : 1;
  g.statistics = groups ? batch * groups : channels;
  g.count = groups ? share * positions : batch * positions;
  g.columns = last || positions < (groups || batch < fewest_rows ? few_positions : few_batch_positions);
  if (g.columns) {
    g.per_channel = last ? 1 : positions;
    g.width = channels * g.per_channel;
    g.fold = share * g.per_channel;
    g.outer = groups ? batch : 1;
    g.rows = (groups ? 1 : batch) * (last ? positions : 1);
    g.blocks = g.outer;
    g.statistics_per_block = groups ? groups : channels;
    g.item_size = std::max(fewest_rows, block / std::max<int64_t>(g.width, 1));
    g.measure_items = g.sum_items = ceil_divide(g.rows, g.item_size);
  } else {
    g.outer = batch;
    g.blocks = g.statistics;
    g.statistics_per_block = 1;
    g.item_size = positions < item ? item / positions * positions : item;
    g.measure_items = ceil_divide(g.count, g.item_size);
  }
  return g;
}

// The backward of planes keeps sums for each run of positions.
void divide_runs(ChannelsGeometry& g) {
  if (g.columns) return;
  g.item_size = 4096;
  g.parts = ceil_divide(g.positions, g.item_size);
  g.sum_items = g.parts * (g.groups ? g.channels / g.groups : g.outer);
}

// weight + offset, bias or a statistic in the arithmetic type, repeated for the columns of a channel.
class ChannelParameter {
 public:
  ChannelParameter(const std::optional<Tensor>& parameter, double offset, const ChannelsGeometry& g, bool to_double) {
    if (!parameter) return;
    STD_TORCH_CHECK(parameter->numel() == g.channels, "evenkeel: a parameter must have one element a channel");
    const int64_t repeats = g.columns ? g.per_channel : 1;
    const Tensor source = as_contiguous(*parameter);
    values_.reset(new double[static_cast<size_t>(g.channels * repeats)]);
    kernels().widen(source.data_ptr(), dtype_of(source), offset, g.channels, repeats, to_double, values_.get());
  }
  const void* data() const { return values_.get(); }

 private:
  std::unique_ptr<double[]> values_;
};

// Runs phases over blocks: each block by one thread, whose cache then holds it from the first phase to the last; or,
// with few blocks, all threads on one phase after the other. The bits are the same.
template <class Items, class Statistics, class Write>
void run(ChannelsCall a, int64_t items, int64_t partial, const Items& measure, const Statistics& merge,
         const Write& write, const Statistics& repair) {
  constexpr int64_t many_blocks = 16, grain = 16384;
  const ChannelsGeometry& g = a.geometry;
  const int64_t per_block = g.statistics_per_block, size = std::max<int64_t>(1, g.count * per_block);
  if (g.blocks >= many_blocks || size * g.blocks <= grain) {
    parallel_for(g.blocks, ceil_divide(grain, size), [&](int64_t begin, int64_t end) {
      const std::unique_ptr<double[]> sums(new double[static_cast<size_t>(items * partial)]);
      ChannelsCall own = a;
      own.partial = sums.get();
      for (int64_t block = begin; block < end; ++block) {
        own.first_item = block * items;
        measure(own, block * items, (block + 1) * items);
        merge(own, block * per_block, (block + 1) * per_block);
        write(own, block * items, (block + 1) * items);
        repair(own, block * per_block, (block + 1) * per_block);
      }
    });
    return;
  }
  const std::unique_ptr<double[]> sums(new double[static_cast<size_t>(g.blocks * items * partial)]);
  a.partial = sums.get();
  a.first_item = 0;
  const int64_t items_per_chunk = std::max<int64_t>(1, grain / ceil_divide(size, items));
  const int64_t statistics_per_chunk = std::max<int64_t>(1, grain / std::max<int64_t>(g.count / 64, 1));
  const auto over_items = [&](const auto& phase) {
    parallel_for(g.blocks * items, items_per_chunk, [&](int64_t begin, int64_t end) { phase(a, begin, end); });
  };
  const auto over_statistics = [&](const auto& phase) {
    parallel_for(g.statistics, statistics_per_chunk, [&](int64_t begin, int64_t end) { phase(a, begin, end); });
  };
  over_items(measure);
  over_statistics(merge);
  over_items(write);
  over_statistics(repair);
}

void nothing(const ChannelsCall&, int64_t, int64_t) {}

// Completes statistics that are given rather than measured.
void remember(const ChannelsCall& a, const ChannelParameter& mean, const ChannelParameter& variance) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t repeats = g.columns ? g.per_channel : 1, width = a.statistics_width();
  const size_t size = a.dtype == DType::float64 ? sizeof(double) : sizeof(float);
  for (int64_t channel = 0; channel < g.channels; ++channel) {
    const auto source = [&](const ChannelParameter& p) {
      return static_cast<const char*>(p.data()) + channel * repeats * size;
    };
    std::copy_n(source(mean), size, static_cast<char*>(a.statistics) + channel * width * size);
    std::copy_n(source(variance), size, static_cast<char*>(a.variance) + channel * size);
  }
  kernels().remember(a, 0, g.channels);
}

ChannelsCall call_of(const Tensor& x, bool last, int64_t groups, double eps, int64_t eps_mode, bool remembered) {
  ChannelsCall a{};
  a.geometry = geometry_of(x, last, groups);
  // given statistics: any order will do, and that of memory is the fastest
  if (remembered && !a.geometry.columns) a.geometry = geometry_of(x, last, a.geometry.channels);
  a.dtype = dtype_of(x);
  a.eps = eps;
  a.eps_mode = static_cast<EpsMode>(eps_mode);
  a.remembered = remembered;
  STD_TORCH_CHECK(!remembered || groups == 0, "evenkeel: given statistics belong to channels, not to groups");
  return a;
}

Tensor zeros(const std::vector<int64_t>& sizes, ScalarType dtype) {
  Tensor t = empty(sizes, dtype);
  return torch::stable::zero_(t);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> channels_forward(const Tensor& x, const std::optional<Tensor>& weight,
                                                    const std::optional<Tensor>& bias,
                                                    const std::optional<Tensor>& mean,
                                                    const std::optional<Tensor>& variance, int64_t groups, double eps,
                                                    int64_t eps_mode, double weight_offset) {
  STD_TORCH_CHECK(mean.has_value() == variance.has_value(), "evenkeel: give the mean and the variance, or neither");
  const bool last = !x.is_contiguous() && has_channels_last(x);
  ChannelsCall a = call_of(x, last, groups, eps, eps_mode, mean.has_value());
  const bool is_double = a.dtype == DType::float64;
  const ScalarType arithmetic = is_double ? ScalarType::Double : ScalarType::Float;
  Tensor y = empty_in_format(x, last);
  const int64_t count = a.remembered ? a.geometry.channels : a.geometry.statistics;
  const std::vector<int64_t> shape{count, a.statistics_width()};
  if (x.numel() == 0) return {y, zeros(shape, arithmetic), zeros({count}, arithmetic)};
  Tensor statistics = empty(shape, arithmetic), variances = empty({count}, arithmetic);
  const Tensor source = dense(x, last);
  const ChannelParameter w(weight, weight_offset, a.geometry, is_double), b(bias, 0.0, a.geometry, is_double);
  a.x = source.data_ptr();
  a.weight = w.data();
  a.bias = b.data();
  a.out = y.data_ptr();
  a.statistics = statistics.data_ptr();
  a.variance = variances.data_ptr();
  const ChannelsWalk& phases = walk(a.geometry);
  if (a.remembered) {
    remember(a, ChannelParameter(mean, 0.0, a.geometry, is_double), ChannelParameter(variance, 0.0, a.geometry, is_double));
    run(a, a.geometry.measure_items, 0, nothing, nothing, phases.write, nothing);
  } else {
    run(a, a.geometry.measure_items, measure_partial(a.geometry), phases.measure, phases.merge, phases.write,
        kernels().repair);
  }
  return {y, statistics, variances};
}

std::tuple<Tensor, Tensor, Tensor> channels_backward(const Tensor& dy, const Tensor& x,
                                                     const std::optional<Tensor>& weight,
                                                     const std::optional<Tensor>& bias, const Tensor& statistics,
                                                     bool remembered, int64_t groups, double eps, int64_t eps_mode,
                                                     double weight_offset, bool need_dx, bool need_dweight,
                                                     bool need_dbias) {
  const bool last = !x.is_contiguous() && has_channels_last(x);
  ChannelsCall a = call_of(x, last, groups, eps, eps_mode, remembered);
  STD_TORCH_CHECK(dtype_of(dy) == a.dtype && dy.numel() == x.numel(), "evenkeel: dy must have x's dtype and shape");
  need_dweight = need_dweight && weight;
  need_dbias = need_dbias && bias;
  Tensor dx = need_dx ? empty_in_format(x, last) : empty({0}, x.scalar_type());
  Tensor dweight = need_dweight ? zeros(sizes_of(*weight), weight->scalar_type()) : empty({0}, x.scalar_type());
  Tensor dbias = need_dbias ? zeros(sizes_of(*bias), bias->scalar_type()) : empty({0}, x.scalar_type());
  if (x.numel() == 0) return {dx, dweight, dbias};
  divide_runs(a.geometry);
  const ChannelsGeometry& g = a.geometry;
  const Tensor source = dense(x, last), upstream = dense(dy, last), saved = as_contiguous(statistics);
  const ChannelParameter w(weight, weight_offset, g, a.dtype == DType::float64);
  const std::unique_ptr<double[]> sums(new double[static_cast<size_t>(2 * g.lanes())]);
  std::vector<double> means(static_cast<size_t>(2 * g.statistics));
  a.x = source.data_ptr();
  a.dy = upstream.data_ptr();
  a.weight = w.data();
  a.statistics = saved.data_ptr();
  a.out = need_dx ? dx.data_ptr() : nullptr;
  a.sums = sums.get();
  a.means = means.data();
  const ChannelsWalk& phases = walk(g);
  const bool sum = need_dweight || need_dbias || !remembered;
  run(a, g.sum_items, sum_partial(g), sum ? phases.sum : nothing, sum ? phases.merge_sums : nothing,
      need_dx ? phases.write_gradient : nothing, kernels().repair_gradient);
  if (need_dweight) kernels().finish(a, 1, g.channels, dtype_of(dweight), dweight.data_ptr());
  if (need_dbias) kernels().finish(a, 0, g.channels, dtype_of(dbias), dbias.data_ptr());
  return {dx, dweight, dbias};
}

}  // namespace evenkeel
