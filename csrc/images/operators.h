// The operators on images.
#pragma once

#include "core/runtime.h"

namespace evenkeel {

// (x / max_value - mean) / std for each channel of (..., channels, height, width), contiguous whatever x's strides.
Tensor image_normalize(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value, ScalarType dtype);
void image_normalize_out(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value, const Tensor& out);

}  // namespace evenkeel
