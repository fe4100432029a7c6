// The operators of the channel pattern: layout, checks and allocation.
#include "channels/operators.h"

#include <algorithm>

#include "channels/passes.h"
#include "channels/run.h"

namespace evenkeel {
namespace {

using torch::headeronly::MemoryFormat;

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

bool is_innermost(const Tensor& t) {
  return has_channels_innermost(t.sizes().data(), t.strides().data(), t.dim());
}

// What torch calls channels-last; of other numbers of axes it lays results out contiguously.
bool has_channels_last(const Tensor& t) {
  return (t.dim() == 4 || t.dim() == 5) && is_innermost(t);
}

Tensor empty_in_format(const Tensor& x, bool last, int64_t tensors = 2) {
  const std::vector<int64_t> sizes = sizes_of(x);
  if (!last) return empty(sizes, x.scalar_type(), tensors);
  std::vector<int64_t> inner(sizes);
  std::rotate(inner.begin() + 1, inner.begin() + 2, inner.end());
  const Tensor memory = empty(inner, x.scalar_type(), tensors);
  const std::vector<int64_t> strides = channels_last_strides(sizes);
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(memory.get(), static_cast<int64_t>(sizes.size()), sizes.data(),
                                                        strides.data(), 0, &handle));
  return Tensor(handle);
}

ChannelsShape shape_of(const Tensor& x, bool last) {
  const auto sizes = x.sizes();
  STD_TORCH_CHECK(sizes.size() >= 2, "evenkeel: expected (batch, channels, ...)");
  ChannelsShape shape{sizes[0], sizes[1], 1, last};
  for (size_t axis = 2; axis < sizes.size(); ++axis) shape.positions *= sizes[axis];
  return shape;
}

// Contiguous, or channels-last where the input is that alone.
Tensor dense(const Tensor& t, bool last) {
  if (last) {
    const MemoryFormat format = t.dim() == 4 ? MemoryFormat::ChannelsLast : MemoryFormat::ChannelsLast3d;
    return has_channels_last(t) ? t : torch::stable::contiguous(t, format);
  }
  if (t.is_contiguous() || !is_innermost(t) || t.numel() == 0) return as_contiguous(t);
  const Tensor out = empty(sizes_of(t), t.scalar_type());
  lay_channels_outermost(memory_of(t), memory_of(out), shape_of(t, true), floating_dtype_of(t));
  return out;
}

ChannelsOptions checked(const ChannelsOptions& given, int64_t channels, bool remembered) {
  const ChannelsOptions options = resolved(given, channels, remembered);
  STD_TORCH_CHECK(options.groups >= 0 && (options.groups == 0 || channels % options.groups == 0),
                  "evenkeel: groups must divide the channels");
  STD_TORCH_CHECK(options.activation >= Activation::none && options.activation <= Activation::silu,
                  "evenkeel: activation must be 0 (none), 1 (relu) or 2 (silu)");
  check_eps_mode(options.eps_mode);
  return options;
}

// A parameter's own memory, or a contiguous copy's.
class Contiguous {
 public:
  Contiguous(const OptionalTensor& parameter, int64_t channels) {
    if (!parameter) return;
    STD_TORCH_CHECK(parameter->numel() == channels, "evenkeel: a parameter must have one element a channel");
    tensor_ = as_contiguous(*parameter);
  }
  Values values() const {
    return tensor_ ? Values{memory_of(*tensor_), floating_dtype_of(*tensor_)} : Values();
  }

 private:
  OptionalTensor tensor_;
};

// A mask's contiguous memory, or null.
class MaskMemory {
 public:
  MaskMemory(const OptionalTensor& mask, const ChannelsShape& shape) {
    if (!mask) return;
    STD_TORCH_CHECK(mask->scalar_type() == ScalarType::Bool, "evenkeel: a mask must be boolean");
    STD_TORCH_CHECK(mask->numel() == shape.batch * shape.positions,
                    "evenkeel: a mask must have one element a position");
    tensor_ = as_contiguous(*mask);
  }
  const uint8_t* data() const { return tensor_ ? static_cast<const uint8_t*>(memory_of(*tensor_)) : nullptr; }

 private:
  OptionalTensor tensor_;
};

Tensor zeros(const std::vector<int64_t>& sizes, ScalarType dtype) {
  Tensor t = empty(sizes, dtype);
  return torch::stable::zero_(t);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> channels_forward(const Tensor& x, const OptionalTensor& weight,
                                                    const OptionalTensor& bias, const OptionalTensor& mean,
                                                    const OptionalTensor& variance, const OptionalTensor& mask,
                                                    const ChannelsOptions& options) {
  STD_TORCH_CHECK(mean.has_value() == variance.has_value(), "evenkeel: give the mean and the variance, or neither");
  const bool last = !x.is_contiguous() && has_channels_last(x);
  ChannelsForward a{.shape = shape_of(x, last), .dtype = floating_dtype_of(x)};
  a.options = checked(options, a.shape.channels, mean.has_value());
  const ScalarType wide = opmath_of(a.dtype);
  Tensor y = empty_in_format(x, last);
  const int64_t channels = a.shape.channels, count = statistics_of(a.shape, a.options.groups);
  const std::vector<int64_t> shape{count, statistics_width(options.eps_mode)};
  if (x.numel() == 0) return {y, zeros(shape, wide), zeros({count}, wide)};
  Tensor statistics = empty(shape, wide), variances = empty({count}, wide);
  const Tensor source = dense(x, last);
  const Contiguous w(weight, channels), b(bias, channels), means(mean, channels), spreads(variance, channels);
  const MaskMemory valid(mask, a.shape);
  a.x = memory_of(source);
  a.y = memory_of(y);
  a.weight = w.values();
  a.bias = b.values();
  a.mean = means.values();
  a.variance = spreads.values();
  a.mask = valid.data();
  a.statistics = memory_of(statistics);
  a.variances = memory_of(variances);
  run_forward(a);
  return {y, statistics, variances};
}

std::tuple<Tensor, Tensor, Tensor> channels_backward(const Tensor& dy, const Tensor& x, const OptionalTensor& weight,
                                                     const OptionalTensor& bias, const Tensor& statistics,
                                                     const OptionalTensor& mask, bool remembered,
                                                     const ChannelsOptions& options, bool need_dx, bool need_dweight,
                                                     bool need_dbias) {
  const bool last = !x.is_contiguous() && has_channels_last(x);
  ChannelsBackward a{.shape = shape_of(x, last), .dtype = floating_dtype_of(x), .remembered = remembered};
  a.options = checked(options, a.shape.channels, remembered);
  const int64_t channels = a.shape.channels, count = statistics_of(a.shape, a.options.groups);
  STD_TORCH_CHECK(dtype_of(dy) == a.dtype && sizes_of(dy) == sizes_of(x), "evenkeel: dy must have x's dtype and shape");
  STD_TORCH_CHECK(statistics.scalar_type() == opmath_of(a.dtype) &&
                      sizes_of(statistics) == std::vector<int64_t>({count, statistics_width(options.eps_mode)}),
                  "evenkeel: statistics must be those that channels_forward returned for this input and these options");
  need_dweight = need_dweight && weight;
  need_dbias = need_dbias && bias;
  Tensor dx = need_dx ? empty_in_format(x, last, 3) : empty({0}, x.scalar_type());
  Tensor dweight = need_dweight ? zeros(sizes_of(*weight), weight->scalar_type()) : empty({0}, x.scalar_type());
  Tensor dbias = need_dbias ? zeros(sizes_of(*bias), bias->scalar_type()) : empty({0}, x.scalar_type());
  if (x.numel() == 0) return {dx, dweight, dbias};
  const Tensor source = dense(x, last), upstream = dense(dy, last), saved = as_contiguous(statistics);
  const Contiguous w(weight, channels), b(bias, channels);
  const MaskMemory valid(mask, a.shape);
  a.x = memory_of(source);
  a.dy = memory_of(upstream);
  a.dx = need_dx ? memory_of(dx) : nullptr;
  a.weight = w.values();
  a.bias = b.values();
  a.mask = valid.data();
  a.statistics = memory_of(saved);
  if (need_dweight) a.dweight = {memory_of(dweight), dtype_of(dweight)};
  if (need_dbias) a.dbias = {memory_of(dbias), dtype_of(dbias)};
  run_backward(a);
  return {dx, dweight, dbias};
}

void update_running(const Tensor& running_mean, const Tensor& running_var, const Tensor& statistics,
                    const Tensor& variances, double momentum, int64_t count) {
  const int64_t channels = variances.numel();
  const bool inside = statistics.numel() == channels * statistics_width(EpsMode::inside);
  ChannelsForward a{.shape = {count, channels, 1, false}, .dtype = floating_dtype_of(variances)};
  a.options.eps_mode = inside ? EpsMode::inside : EpsMode::outside;
  for (const Tensor* each : {&running_mean, &running_var, &statistics, &variances}) {
    STD_TORCH_CHECK(each->is_contiguous(), "evenkeel: running statistics and those of the batch must be contiguous");
  }
  STD_TORCH_CHECK(running_mean.numel() == channels && running_var.numel() == channels && count > 1,
                  "evenkeel: running statistics must be as many as the channels, and of several values each");
  a.running_mean = {memory_of(running_mean), floating_dtype_of(running_mean)};
  a.running_var = {memory_of(running_var), floating_dtype_of(running_var)};
  a.statistics = memory_of(statistics);
  a.variances = memory_of(variances);
  a.momentum = momentum;
  update_running(a);
}

}  // namespace evenkeel
