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

// groups: of a sample; 0 for one statistic per channel over the batch. mean and variance: use these, per channel.
std::tuple<Tensor, Tensor, Tensor> channels_forward(const Tensor& x, const std::optional<Tensor>& weight,
                                                    const std::optional<Tensor>& bias,
                                                    const std::optional<Tensor>& mean,
                                                    const std::optional<Tensor>& variance, int64_t groups, double eps,
                                                    int64_t eps_mode, double weight_offset);

std::tuple<Tensor, Tensor, Tensor> channels_backward(const Tensor& dy, const Tensor& x,
                                                     const std::optional<Tensor>& weight,
                                                     const std::optional<Tensor>& bias, const Tensor& statistics,
                                                     bool remembered, int64_t groups, double eps, int64_t eps_mode,
                                                     double weight_offset, bool need_dx, bool need_dweight,
                                                     bool need_dbias);

// x: (tables, rows, columns) -> count, mean, m2, minimum, maximum, missing, infinite, mean_low: (tables, columns)
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> column_moments(
    const Tensor& x, const std::optional<Tensor>& weight);

// (x - shift) * scale + offset for each column of (..., columns), clipped where low and high are given.
Tensor column_affine(const Tensor& x, const Tensor& shift, const Tensor& scale, const std::optional<Tensor>& offset,
                     std::optional<double> low, std::optional<double> high, torch::headeronly::ScalarType dtype);
void column_affine_out(const Tensor& x, const Tensor& shift, const Tensor& scale, const std::optional<Tensor>& offset,
                       std::optional<double> low, std::optional<double> high, const Tensor& out);

// (x / max_value - mean) / std for each channel of (..., channels, height, width), contiguous whatever x's strides.
Tensor image_normalize(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value,
                       torch::headeronly::ScalarType dtype);
void image_normalize_out(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value, const Tensor& out);

// "avx512", "avx2" or "baseline": the best this processor has, or what EVENKEEL_SIMD asks for if it has that.
std::string simd_level();

}  // namespace evenkeel
