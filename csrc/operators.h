// The operators that bindings.cpp registers.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <tuple>

namespace evenkeel {

using torch::stable::Tensor;

// statistic: 0 root mean square, 1 mean and variance, 2 length. early: rounded before the weight. recomputable: refuse
// parameters from which the normalized rows cannot be found again.
std::tuple<Tensor, Tensor> rows_forward(const Tensor& x, const std::optional<Tensor>& weight,
                                        const std::optional<Tensor>& bias, int64_t axes, int64_t statistic, double eps,
                                        int64_t eps_mode, double weight_offset, bool early, bool recomputable);

// The same without statistics, for where no gradient will be asked for.
Tensor rows_inference(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                      int64_t axes, int64_t statistic, double eps, int64_t eps_mode, double weight_offset, bool early);

// The same into memory of the caller's: x itself, or no part of any input.
void rows_out(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, int64_t axes,
              int64_t statistic, double eps, int64_t eps_mode, double weight_offset, bool early, const Tensor& out);

// from_output: x is what the forward returned.
std::tuple<Tensor, Tensor, Tensor> rows_backward(const Tensor& dy, const Tensor& x,
                                                 const std::optional<Tensor>& weight,
                                                 const std::optional<Tensor>& bias, const Tensor& statistics,
                                                 int64_t axes, int64_t statistic, double eps, int64_t eps_mode,
                                                 double weight_offset, bool need_dx, bool need_dweight,
                                                 bool need_dbias, bool from_output);

// y, x + residual (in residual's dtype) and the statistics of the sum, rounded to that dtype or not.
std::tuple<Tensor, Tensor, Tensor> add_rows_forward(const Tensor& x, const Tensor& residual,
                                                    const std::optional<Tensor>& weight,
                                                    const std::optional<Tensor>& bias, int64_t axes, int64_t statistic,
                                                    double eps, int64_t eps_mode, double weight_offset, bool rounded);

// x is the rounded sum, or the first of the two that are added again. dx has dy's dtype; dresidual is empty where it
// would have the same.
std::tuple<Tensor, Tensor, Tensor, Tensor> add_rows_backward(
    const Tensor& dy, const std::optional<Tensor>& dsum, const Tensor& x, const std::optional<Tensor>& residual,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, const Tensor& statistics, int64_t axes,
    int64_t statistic, double eps, int64_t eps_mode, double weight_offset, bool need_dx, bool need_dresidual,
    bool need_dweight, bool need_dbias);

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

// x: (tables, rows, columns) -> count, mean, m2, minimum, maximum, missing, infinite, mean_low: (tables, columns)
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> column_moments(
    const Tensor& x, const std::optional<Tensor>& weight);

// The same of columns (rows), each with memory of its own, in tensors (columns).
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> separate_column_moments(
    const std::vector<Tensor>& columns);

// (x - shift) * scale + offset for each column of (..., columns), clipped where low and high are given. Sets
// `infinite`, one Boolean, where x holds an infinity.
Tensor column_affine(const Tensor& x, const Tensor& shift, const Tensor& scale, const std::optional<Tensor>& offset,
                     std::optional<double> low, std::optional<double> high, torch::headeronly::ScalarType dtype,
                     const std::optional<Tensor>& infinite);
void column_affine_out(const Tensor& x, const Tensor& shift, const Tensor& scale, const std::optional<Tensor>& offset,
                       std::optional<double> low, std::optional<double> high, const Tensor& out,
                       const std::optional<Tensor>& infinite);

// (x / max_value - mean) / std for each channel of (..., channels, height, width), contiguous whatever x's strides.
Tensor image_normalize(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value,
                       torch::headeronly::ScalarType dtype);
void image_normalize_out(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value, const Tensor& out);

// Whether a CPU tensor lies in a block of our own (memory.cpp), which torch cannot resize.
bool is_pooled(const Tensor& t);

// "avx512", "avx2" or "baseline": the best this processor has, or what EVENKEEL_SIMD asks for if it has that.
std::string simd_level();

}  // namespace evenkeel
