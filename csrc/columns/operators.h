// The operators on tables.
#pragma once

#include "core/runtime.h"

namespace evenkeel {

// count, mean, m2, minimum, maximum, missing, infinite, mean_low
using ColumnMoments = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Of (tables, rows, columns), each (tables, columns); weight: a float64 one for each row.
ColumnMoments column_moments(const Tensor& x, const OptionalTensor& weight);

// Of columns (rows), each with memory of its own; each (columns).
ColumnMoments separate_column_moments(const std::vector<Tensor>& columns);

// (x - shift) * scale + offset for each column of (..., columns), clipped where low and high are given. Sets
// `infinite`, one Boolean, where x holds an infinity.
Tensor column_affine(const Tensor& x, const Tensor& shift, const Tensor& scale, const OptionalTensor& offset,
                     std::optional<double> low, std::optional<double> high, ScalarType dtype,
                     const OptionalTensor& infinite);
void column_affine_out(const Tensor& x, const Tensor& shift, const Tensor& scale, const OptionalTensor& offset,
                       std::optional<double> low, std::optional<double> high, const Tensor& out,
                       const OptionalTensor& infinite);

}  // namespace evenkeel
