// The interface between the operators on images and their kernels; plain data, shared by every instruction set.
#pragma once

#include "core/types.h"

namespace evenkeel {

struct ImageMap {
  DType from, to;                       // `to` is floating
  int64_t pixel_stride, channel_stride;  // of the input, in elements
  int64_t plane;                         // elements of a channel of the result
  double max_value;
  const double *mean, *std;  // per channel
  const struct ByteAffine* bytes;  // per channel, of the same values; else null
  bool stream;                     // past the caches
};

// The definition's float32 results for bytes without its divisions. A form is used where it gives them for all 256
// bytes.
struct ByteAffine {
  float shift, scale, scale_low, rest;  // (x - shift) * (scale + scale_low) + rest with fused operations
};

struct ImagesKernels {
  // false where there is no such form for a channel
  bool (*find_affine)(const ImageMap&, int64_t channels, ByteAffine* forms);
  // y[c * plane + i] = ((x[i * pixel_stride + c * channel_stride] / max_value) - mean[c]) / std[c] for n pixels and the
  // channels from `first` on; x and y point to the first of them
  void (*normalize)(const ImageMap&, const void* x, void* y, int64_t n, int64_t first, int64_t channels);
};

EVENKEEL_VARIANTS(ImagesKernels, images_kernels)

}  // namespace evenkeel
