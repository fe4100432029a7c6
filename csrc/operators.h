// The operators that bindings.cpp registers.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <tuple>

namespace evenkeel {

using torch::stable::Tensor;

std::tuple<Tensor, Tensor> rows_forward(const Tensor& x, const std::optional<Tensor>& weight,
                                        const std::optional<Tensor>& bias, int64_t axes, bool center, double eps,
                                        int64_t eps_mode, double weight_offset);

// The same without statistics, for where no gradient will be asked for.
Tensor rows_inference(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                      int64_t axes, bool center, double eps, int64_t eps_mode, double weight_offset);

std::tuple<Tensor, Tensor, Tensor> rows_backward(const Tensor& dy, const Tensor& x,
                                                 const std::optional<Tensor>& weight,
                                                 const std::optional<Tensor>& bias, const Tensor& statistics,
                                                 int64_t axes, bool center, double eps, int64_t eps_mode,
                                                 double weight_offset, bool need_dx, bool need_dweight,
                                                 bool need_dbias);

// groups: of a sample; 0 for one statistic per channel over the batch. mean and variance: use these, per channel. mask:
// (batch, 1, *positions), true where valid. activation: 0 none, 1 relu, 2 silu.
std::tuple<Tensor, Tensor, Tensor> channels_forward(const Tensor& x, const std::optional<Tensor>& weight,
                                                    const std::optional<Tensor>& bias,
                                                    const std::optional<Tensor>& mean,
                                                    const std::optional<Tensor>& variance,
                                                    const std::optional<Tensor>& mask, int64_t groups, double eps,
                                                    int64_t eps_mode, double weight_offset, int64_t activation);

std::tuple<Tensor, Tensor, Tensor> channels_backward(const Tensor& dy, const Tensor& x,
                                                     const std::optional<Tensor>& weight,
                                                     const std::optional<Tensor>& bias, const Tensor& statistics,
                                                     const std::optional<Tensor>& mask, bool remembered,
                                                     int64_t groups, double eps, int64_t eps_mode,
                                                     double weight_offset, int64_t activation, bool need_dx,
                                                     bool need_dweight, bool need_dbias);

// "avx512", "avx2" or "baseline": the best this processor has, or what EVENKEEL_SIMD asks for if it has that.
std::string simd_level();

}  // namespace evenkeel
