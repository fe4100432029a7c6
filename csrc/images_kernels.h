// What the operators in images.cpp ask of the image kernels; plain data only, shared by every instruction set.
#pragma once

#include "columns_kernels.h"

namespace evenkeel {

struct ImageMap {
  Number from, to;                       // `to` is floating
  int64_t pixel_stride, channel_stride;  // of the input, in elements
  int64_t plane;                         // elements of a channel of the result
  double max_value;
  const double *mean, *std;  // per channel
  // per channel, where (x - shift) * scale gives the same results for all 256 bytes; else null
  const double *shift, *scale;
  bool stream;  // past the caches
};

struct ImagesKernels {
  // y[c * plane + i] = ((x[i * pixel_stride + c * channel_stride] / max_value) - mean[c]) / std[c] for n pixels and the
  // channels from `first` on; x and y point to the first of them
  void (*normalize)(const ImageMap&, const void* x, void* y, int64_t n, int64_t first, int64_t channels);
};

extern const ImagesKernels images_kernels_baseline;
extern const ImagesKernels images_kernels_avx2;
extern const ImagesKernels images_kernels_avx512;

}  // namespace evenkeel
