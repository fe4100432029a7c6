// The operators of the channel pattern: layout, allocation and the division of work; the *_kernels.cpp compute.
#include "channels_geometry.h"

#include <algorithm>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
const ChannelsWalk& phases_of(const ChannelsGeometry& g) {
  switch (g.walk) {
    case Walk::columns:
      return of_level(channels_last_kernels_baseline, channels_last_kernels_avx2, channels_last_kernels_avx512);
    case Walk::groups:
      return of_level(channels_groups_kernels_baseline, channels_groups_kernels_avx2, channels_groups_kernels_avx512);
    default:
      return of_level(channels_first_kernels_baseline, channels_first_kernels_avx2, channels_first_kernels_avx512);
  }
}
#else
const ChannelsKernels& kernels() { return channels_kernels_baseline; }
const ChannelsWalk& phases_of(const ChannelsGeometry& g) {
  return g.walk == Walk::columns  ? channels_last_kernels_baseline
         : g.walk == Walk::groups ? channels_groups_kernels_baseline
                                  : channels_first_kernels_baseline;
}
#endif

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

// weight + offset or bias in double, for every channel (planes) or column: the sum of a weight and an offset is not
// rounded. A vector's length further it may be read.
class ChannelParameter {
 public:
  ChannelParameter(const OptionalTensor& parameter, double offset, const ChannelsGeometry& g)
      : ChannelParameter(parameter, offset, g.channels, g.per_channel, g.repeat) {}
  // `each` times in a row, and the whole `times` times
  ChannelParameter(const OptionalTensor& parameter, double offset, int64_t channels, int64_t each,
                   int64_t times) {
    constexpr int64_t vector = 16;
    if (!parameter) return;
    STD_TORCH_CHECK(parameter->numel() == channels, "evenkeel: a parameter must have one element a channel");
    const Tensor source = as_contiguous(*parameter);
    const int64_t count = channels * each * times;
    values_.reset(new double[static_cast<size_t>(count + vector)]);
    kernels().widen(source.data_ptr(), dtype_of(source), offset, channels, each, times, values_.get());
    std::fill_n(values_.get() + count, vector, 0.0);
  }
  const double* data() const { return values_.get(); }

 private:
  std::unique_ptr<double[]> values_;
};

// Where x and an output are more than this, an output's lines are gone from the caches before they are needed.
constexpr int64_t largest_cached = int64_t{32} << 20;

bool is_streamed(const Tensor& x) {
  const int64_t width = dtype_of(x) == DType::float64 ? 8 : dtype_of(x) == DType::float32 ? 4 : 2;
  return 2 * x.numel() * width > largest_cached;
}

// After writing past the caches and before another thread may read.
void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Whether a block's gradients after the activation are kept from the sums to dx: in planes, and small enough for cache.
bool keeps_gradient(const ChannelsCall& a) {
  constexpr int64_t largest_kept = 65536;
  const ChannelsGeometry& g = a.geometry;
  return a.dy && a.out && !a.remembered && g.walk == Walk::planes && a.options.activation == Activation::silu &&
         g.count <= largest_kept;
}

// Memory for numbers of the arithmetic type, on a cache line; none for none.
class Scratch {
 public:
  explicit Scratch(int64_t count) {
    if (count == 0) return;
    memory_.reset(new double[static_cast<size_t>(count + 7)]);
    const auto start = reinterpret_cast<uintptr_t>(memory_.get());
    data_ = memory_.get() + (64 - start % 64) % 64 / sizeof(double);
  }
  double* data() const { return data_; }

 private:
  std::unique_ptr<double[]> memory_;
  double* data_ = nullptr;
};

struct Phases {
  ChannelsPhase prepare, measure, merge, write, repair;  // null where there is nothing to do
};

// Runs phases over blocks: each block by one thread, whose cache then holds it from the first phase to the last; or,
// with few blocks, all threads on one phase after the other. The bits are the same.
void run(ChannelsCall a, int64_t items, int64_t partial, const Phases& phases) {
  constexpr int64_t many_blocks = 16, grain = 16384;
  const ChannelsGeometry& g = a.geometry;
  const int64_t per_block = g.statistics_per_block, size = std::max<int64_t>(1, g.count * per_block);
  const int64_t factors = g.walk == Walk::planes ? 0 : factors_per_column * padded(g.width);
  if (g.walk == Walk::groups || g.blocks >= many_blocks || size * g.blocks <= grain) {
    parallel_for(g.blocks, ceil_divide(grain, size), [&](int64_t begin, int64_t end) {
      const Scratch sums(items * partial), own_factors(factors), kept(keeps_gradient(a) ? size : 0);
      ChannelsCall own = a;
      own.partial = sums.data();
      own.factors = own_factors.data();
      own.kept = kept.data();
      for (int64_t block = begin; block < end; ++block) {
        own.first_block = block;
        own.first_item = block * items;
        const int64_t first = block * per_block, last = std::min(first + per_block, g.statistics);
        const int64_t written = g.write_items(items), first_written = block * written;
        const int64_t last_item = g.walk == Walk::groups ? last : own.first_item + items;
        const auto over_statistics = [&](ChannelsPhase phase) {
          if (phase) phase(own, first, last);
        };
        const auto over_items = [&](ChannelsPhase phase) {
          if (phase) phase(own, own.first_item, last_item);
        };
        over_statistics(phases.prepare);
        over_items(phases.measure);
        over_statistics(phases.merge);
        if (phases.write) phases.write(own, first_written, first_written + written);
        over_statistics(phases.repair);
      }
      if (a.streamed) finish_streams();
    });
    return;
  }
  const Scratch sums(g.blocks * items * partial), all_factors(g.blocks * factors);
  a.partial = sums.data();
  a.factors = all_factors.data();
  const int64_t written = g.write_items(items);
  const auto per_chunk = [&](int64_t pieces) { return std::max<int64_t>(1, grain / ceil_divide(size, pieces)); };
  const int64_t statistics_per_chunk = std::max<int64_t>(1, grain / std::max<int64_t>({g.count / 64, 4 * g.fold, 1}));
  const auto over_items = [&](ChannelsPhase phase) {
    if (!phase) return;
    parallel_for(g.blocks * items, per_chunk(items), [&](int64_t begin, int64_t end) { phase(a, begin, end); });
  };
  // the last item first: of what was measured it is the likeliest to be in cache still
  const auto back_over_written = [&](ChannelsPhase phase) {
    if (!phase) return;
    parallel_for(g.blocks * written, per_chunk(written), [&](int64_t begin, int64_t end) {
      for (int64_t item = end; item-- > begin;) phase(a, item, item + 1);
      if (a.streamed) finish_streams();
    });
  };
  const auto over_statistics = [&](ChannelsPhase phase) {
    if (!phase) return;
    parallel_for(g.statistics, statistics_per_chunk, [&](int64_t begin, int64_t end) { phase(a, begin, end); });
  };
  over_statistics(phases.prepare);
  over_items(phases.measure);
  over_statistics(phases.merge);
  back_over_written(phases.write);
  over_statistics(phases.repair);
}

ChannelsCall call_of(const Tensor& x, bool last, const ChannelsOptions& options, bool remembered,
                     const OptionalTensor& mask, bool backward) {
  STD_TORCH_CHECK(!remembered || options.groups == 0, "evenkeel: given statistics belong to channels, not to groups");
  STD_TORCH_CHECK(options.activation >= Activation::none && options.activation <= Activation::silu,
                  "evenkeel: activation must be 0 (none), 1 (relu) or 2 (silu)");
  check_eps_mode(options.eps_mode);
  ChannelsCall a{};
  a.geometry = geometry_of(x, last, options.groups, mask.has_value(), true, backward);
  // given statistics: the order of memory is the fastest
  if (remembered && a.geometry.walk == Walk::planes) {
    a.geometry = geometry_of(x, last, a.geometry.channels, mask.has_value(), false, backward);
  }
  a.dtype = dtype_of(x);
  a.options = options;
  a.remembered = remembered;
  return a;
}

// The mask's memory and how much of it is valid.
class Mask {
 public:
  Mask(const OptionalTensor& mask, const Tensor& x, ChannelsCall& a) {
    if (!mask) return;
    STD_TORCH_CHECK(mask->scalar_type() == ScalarType::Bool, "evenkeel: a mask must be boolean");
    const int64_t batch = x.sizes()[0], positions = a.geometry.positions;
    STD_TORCH_CHECK(mask->numel() == batch * positions, "evenkeel: a mask must have one element a position");
    memory_ = as_contiguous(*mask);
    a.mask = static_cast<const uint8_t*>(memory_->data_ptr());
    counts_.assign(a.geometry.groups ? static_cast<size_t>(batch) : 1, 0);
    uint8_t bits = 0;
    for (int64_t sample = 0; sample < batch; ++sample) {
      int64_t& count = counts_[a.geometry.groups ? static_cast<size_t>(sample) : 0];
      for (int64_t i = 0; i < positions; ++i) {
        const uint8_t byte = a.mask[sample * positions + i];
        count += byte != 0;
        bits |= byte;
      }
    }
    a.valid = counts_.data();
    if (bits > 1) write_ones(a);
  }

 private:
  // A view of other memory as boolean may hold any byte where it is true.
  void write_ones(ChannelsCall& a) {
    ones_.assign(a.mask, a.mask + memory_->numel());
    for (uint8_t& byte : ones_) byte = byte != 0;
    a.mask = ones_.data();
  }
  std::optional<Tensor> memory_;
  std::vector<uint8_t> ones_;
  std::vector<int64_t> counts_;
};

Tensor zeros(const std::vector<int64_t>& sizes, ScalarType dtype) {
  Tensor t = empty(sizes, dtype);
  return torch::stable::zero_(t);
}

ScalarType arithmetic(const ChannelsCall& a) {
  return a.dtype == DType::float64 ? ScalarType::Double : ScalarType::Float;
}

std::vector<int64_t> statistics_shape(const ChannelsCall& a) {
  return {a.remembered ? a.geometry.channels : a.geometry.statistics, a.statistics_width()};
}

void set_weight(ChannelsCall& a, const ChannelParameter& weight) {
  a.weight = weight.data();
  a.smallest_weight = a.largest_weight = 1;
  if (!a.weight) return;
  double smallest = 0x1p128, largest = 0;
  const int64_t step = a.geometry.per_channel;
  for (int64_t channel = 0; channel < a.geometry.channels; ++channel) {
    const double weight_of = std::abs(a.weight[channel * step]);
    if (!is_normal(weight_of)) continue;
    smallest = std::min(smallest, weight_of);
    largest = std::max(largest, weight_of);
  }
  if (largest == 0) return;
  a.smallest_weight = smallest;
  a.largest_weight = largest;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> channels_forward(const Tensor& x, const OptionalTensor& weight,
                                                    const OptionalTensor& bias,
                                                    const OptionalTensor& mean,
                                                    const OptionalTensor& variance,
                                                    const OptionalTensor& mask,
                                                    const ChannelsOptions& options) {
  STD_TORCH_CHECK(mean.has_value() == variance.has_value(), "evenkeel: give the mean and the variance, or neither");
  const bool last = !x.is_contiguous() && has_channels_last(x);
  ChannelsCall a = call_of(x, last, options, mean.has_value(), mask, false);
  Tensor y = empty_in_format(x, last);
  const int64_t channels = a.geometry.channels;
  const std::vector<int64_t> shape = statistics_shape(a);
  if (x.numel() == 0) return {y, zeros(shape, arithmetic(a)), zeros({shape[0]}, arithmetic(a))};
  Tensor statistics = empty(shape, arithmetic(a)), variances = empty({shape[0]}, arithmetic(a));
  const Tensor source = dense(x, last);
  const Mask valid(mask, x, a);
  const ChannelParameter w(weight, options.weight_offset, a.geometry), b(bias, 0.0, a.geometry);
  a.x = source.data_ptr();
  set_weight(a, w);
  a.bias = b.data();
  a.out = y.data_ptr();
  a.streamed = is_streamed(x);
  a.statistics = statistics.data_ptr();
  a.variance = variances.data_ptr();
  const ChannelsWalk& phases = phases_of(a.geometry);
  if (a.remembered) {
    const ChannelParameter means(mean, 0.0, channels, 1, 1), given(variance, 0.0, channels, 1, 1);
    kernels().remember(a, means.data(), given.data());
    run(a, a.geometry.measure_items, 0, {phases.prepare, nullptr, nullptr, phases.write, nullptr});
  } else {
    run(a, a.geometry.measure_items, measure_partial(a.geometry),
        {nullptr, phases.measure, phases.merge, phases.write, kernels().repair});
  }
  return {y, statistics, variances};
}

std::tuple<Tensor, Tensor, Tensor> channels_backward(const Tensor& dy, const Tensor& x,
                                                     const OptionalTensor& weight,
                                                     const OptionalTensor& bias, const Tensor& statistics,
                                                     const OptionalTensor& mask, bool remembered,
                                                     const ChannelsOptions& options, bool need_dx, bool need_dweight,
                                                     bool need_dbias) {
  const bool last = !x.is_contiguous() && has_channels_last(x);
  ChannelsCall a = call_of(x, last, options, remembered, mask, true);
  STD_TORCH_CHECK(dtype_of(dy) == a.dtype && sizes_of(dy) == sizes_of(x), "evenkeel: dy must have x's dtype and shape");
  STD_TORCH_CHECK(statistics.scalar_type() == arithmetic(a) && sizes_of(statistics) == statistics_shape(a),
                  "evenkeel: statistics must be those that channels_forward returned for this input and these options");
  need_dweight = need_dweight && weight;
  need_dbias = need_dbias && bias;
  Tensor dx = need_dx ? empty_in_format(x, last) : empty({0}, x.scalar_type());
  Tensor dweight = need_dweight ? zeros(sizes_of(*weight), weight->scalar_type()) : empty({0}, x.scalar_type());
  Tensor dbias = need_dbias ? zeros(sizes_of(*bias), bias->scalar_type()) : empty({0}, x.scalar_type());
  if (x.numel() == 0) return {dx, dweight, dbias};
  divide_runs(a.geometry);
  const ChannelsGeometry& g = a.geometry;
  const Tensor source = dense(x, last), upstream = dense(dy, last), saved = as_contiguous(statistics);
  const Mask valid(mask, x, a);
  const ChannelParameter w(weight, options.weight_offset, a.geometry), b(bias, 0.0, a.geometry);
  const std::unique_ptr<double[]> sums(new double[static_cast<size_t>(2 * g.lanes())]);
  std::vector<double> means(static_cast<size_t>(g.walk == Walk::groups ? 0 : 2 * g.statistics));
  a.x = source.data_ptr();
  a.dy = upstream.data_ptr();
  set_weight(a, w);
  a.bias = b.data();
  a.statistics = saved.data_ptr();
  a.out = need_dx ? dx.data_ptr() : nullptr;
  a.streamed = is_streamed(x);
  a.sums = sums.get();
  a.means = means.data();
  const ChannelsWalk& phases = phases_of(g);
  const bool sum = need_dweight || need_dbias || !remembered;
  run(a, g.sum_items, sum_partial(g), {phases.prepare, sum ? phases.sum : nullptr, sum ? phases.merge_sums : nullptr,
                                       need_dx ? phases.write_gradient : nullptr, kernels().repair_gradient});
  if (need_dweight) kernels().finish(a, 1, g.channels, dtype_of(dweight), dweight.data_ptr());
  if (need_dbias) kernels().finish(a, 0, g.channels, dtype_of(dbias), dbias.data_ptr());
  return {dx, dweight, dbias};
}

}  // namespace evenkeel
