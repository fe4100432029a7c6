// The operators that bindings.cpp registers.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "channels_kernels.h"
#include "rows_kernels.h"

namespace evenkeel {

using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// With a residual, x + residual is normalized. Returns y, x + residual in residual's dtype (empty without one) and the
// statistics. recomputable: refuse parameters from which the normalized rows cannot be found again.
std::tuple<Tensor, Tensor, Tensor> rows_forward(const Tensor& x, const OptionalTensor& residual,
                                                const OptionalTensor& weight, const OptionalTensor& bias, int64_t axes,
                                                const RowsOptions& options, bool recomputable);

// y alone, for where no gradient will be asked for.
Tensor rows_inference(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, int64_t axes,
                      const RowsOptions& options);

// The same into memory of the caller's: x itself, or no part of any input.
void rows_out(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, int64_t axes,
              const RowsOptions& options, const Tensor& out);

// x is what was normalized (the rounded sum, where a residual was added), what has to be added to residual again, or,
// with from_output, y. dx has y's dtype, which is dy's; but x's where an early norm rounded y to a wider weight's.
// dresidual is empty where it would have dx's dtype.
std::tuple<Tensor, Tensor, Tensor, Tensor> rows_backward(const Tensor& dy, const OptionalTensor& dsum, const Tensor& x,
                                                         const OptionalTensor& residual, const OptionalTensor& weight,
                                                         const OptionalTensor& bias, const Tensor& statistics,
                                                         int64_t axes, const RowsOptions& options, bool need_dx,
                                                         bool need_dresidual, bool need_dweight, bool need_dbias,
                                                         bool from_output);

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

// x: (tables, rows, columns) -> count, mean, m2, minimum, maximum, missing, infinite, mean_low: (tables, columns)
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> column_moments(
    const Tensor& x, const OptionalTensor& weight);

// The same of columns (rows), each with memory of its own, in tensors (columns).
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> separate_column_moments(
    const std::vector<Tensor>& columns);

// (x - shift) * scale + offset for each column of (..., columns), clipped where low and high are given. Sets
// `infinite`, one Boolean, where x holds an infinity.
Tensor column_affine(const Tensor& x, const Tensor& shift, const Tensor& scale, const OptionalTensor& offset,
                     std::optional<double> low, std::optional<double> high, torch::headeronly::ScalarType dtype,
                     const OptionalTensor& infinite);
void column_affine_out(const Tensor& x, const Tensor& shift, const Tensor& scale, const OptionalTensor& offset,
                       std::optional<double> low, std::optional<double> high, const Tensor& out,
                       const OptionalTensor& infinite);

// (x / max_value - mean) / std for each channel of (..., channels, height, width), contiguous whatever x's strides.
Tensor image_normalize(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value,
                       torch::headeronly::ScalarType dtype);
void image_normalize_out(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value, const Tensor& out);

// Whether a CPU tensor lies in a block of our own (memory.cpp), which torch cannot resize.
bool is_pooled(const Tensor& t);

// "avx512", "avx2" or "baseline": the best this processor has, or what EVENKEEL_SIMD asks for if it has that.
std::string simd_level();

}  // namespace evenkeel
