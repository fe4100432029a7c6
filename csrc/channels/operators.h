// The operators of the channel pattern.
#pragma once

#include "channels/kernels.h"
#include "core/runtime.h"

namespace evenkeel {

// mean and variance: use these, per channel. mask: (batch, 1, *positions), true where valid. Returns y, statistics and
// variances.
std::tuple<Tensor, Tensor, Tensor> channels_forward(const Tensor& x, const OptionalTensor& weight,
                                                    const OptionalTensor& bias, const OptionalTensor& mean,
                                                    const OptionalTensor& variance, const OptionalTensor& mask,
                                                    const ChannelsOptions& options);

std::tuple<Tensor, Tensor, Tensor> channels_backward(const Tensor& dy, const Tensor& x, const OptionalTensor& weight,
                                                     const OptionalTensor& bias, const Tensor& statistics,
                                                     const OptionalTensor& mask, bool remembered,
                                                     const ChannelsOptions& options, bool need_dx, bool need_dweight,
                                                     bool need_dbias);

// Moves running statistics towards those of a batch of `count` values a channel, which channels_forward returned.
void update_running(const Tensor& running_mean, const Tensor& running_var, const Tensor& statistics,
                    const Tensor& variances, double momentum, int64_t count);

}  // namespace evenkeel
