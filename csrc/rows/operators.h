// The operators of the row pattern.
#pragma once

#include "core/runtime.h"
#include "rows/kernels.h"

namespace evenkeel {

// With a residual, x + residual is normalized. Returns y, x + residual in residual's dtype (empty without one) and the
// statistics. recomputable: refuse parameters with which the output does not determine the normalized rows.
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

}  // namespace evenkeel
