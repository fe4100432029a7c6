// The operators of the channel pattern: layout, allocation and the division of work; the *_kernels.cpp compute.
#include "channels/operators.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "channels/geometry.h"
#include "channels/run.h"

namespace evenkeel {
namespace {

using torch::headeronly::MemoryFormat;

const ChannelsKernels& kernels() { return EVENKEEL_BEST(channels_kernels); }
const ChannelsWalk& phases_of(const ChannelsGeometry& g) {
  switch (g.walk) {
    case Walk::columns: return EVENKEEL_BEST(columns_walk);
    case Walk::groups: return EVENKEEL_BEST(groups_walk);
    default: return EVENKEEL_BEST(planes_walk);
  }
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
  if (sizes.size() != 4 && sizes.size() != 5) return false;
  const auto dense_strides = channels_last_strides(sizes);
  const auto strides = t.strides();
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] != 1 && strides[axis] != dense_strides[axis]) return false;
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
    kernels().widen(source.data_ptr(), floating_dtype_of(source), offset, channels, each, times, values_.get());
    std::fill_n(values_.get() + count, vector, 0.0);
  }
  const double* data() const { return values_.get(); }

 private:
  std::unique_ptr<double[]> values_;
};

ChannelsCall call_of(const Tensor& x, bool last, const ChannelsOptions& options, bool remembered,
                     const OptionalTensor& mask, bool backward) {
  STD_TORCH_CHECK(!remembered || options.groups == 0, "evenkeel: given statistics belong to channels, not to groups");
  STD_TORCH_CHECK(options.activation >= Activation::none && options.activation <= Activation::silu,
                  "evenkeel: activation must be 0 (none), 1 (relu) or 2 (silu)");
  check_eps_mode(options.eps_mode);
  ChannelsCall a{};
  a.geometry = geometry_of(x, last, options.groups, mask.has_value(), true, backward);
  // remembered statistics: the order of memory is the fastest
  if (remembered && a.geometry.walk == Walk::planes) {
    a.geometry = geometry_of(x, last, a.geometry.channels, mask.has_value(), false, backward);
  }
  a.dtype = floating_dtype_of(x);
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
  if (x.numel() == 0) return {y, zeros(shape, opmath_of(a.dtype)), zeros({shape[0]}, opmath_of(a.dtype))};
  Tensor statistics = empty(shape, opmath_of(a.dtype)), variances = empty({shape[0]}, opmath_of(a.dtype));
  const Tensor source = dense(x, last);
  const Mask valid(mask, x, a);
  const ChannelParameter w(weight, options.weight_offset, a.geometry), b(bias, 0.0, a.geometry);
  a.x = source.data_ptr();
  set_weight(a, w);
  a.bias = b.data();
  a.out = y.data_ptr();
  a.streamed = bytes_of(x) > streamed_bytes;
  a.statistics = statistics.data_ptr();
  a.variance = variances.data_ptr();
  const ChannelsWalk& phases = phases_of(a.geometry);
  if (a.remembered) {
    const ChannelParameter means(mean, 0.0, channels, 1, 1), spreads(variance, 0.0, channels, 1, 1);
    kernels().remember(a, means.data(), spreads.data());
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
  STD_TORCH_CHECK(statistics.scalar_type() == opmath_of(a.dtype) && sizes_of(statistics) == statistics_shape(a),
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
  a.streamed = bytes_of(x) > streamed_bytes;
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
