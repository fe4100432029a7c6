// The operators on images: strides, allocation and the division of work; normalize_kernels.cpp computes.
#include "images/operators.h"

#include <algorithm>

#include "core/caches.h"
#include "images/kernels.h"

namespace evenkeel {
namespace {

const ImagesKernels& kernels() { return EVENKEEL_BEST(images_kernels); }

// (images, channels, rows, pixels of a row); rows that follow each other in memory are one.
struct Images {
  int64_t images, channels, rows, pixels;
  int64_t image_stride, channel_stride, row_stride, pixel_stride;
  int64_t area() const { return rows * pixels; }
};

// False where the leading axes do not lie evenly.
bool describe(const Tensor& x, Images& p) {
  const auto sizes = x.sizes(), strides = x.strides();
  const size_t n = sizes.size();
  p = {1, sizes[n - 3], sizes[n - 2], sizes[n - 1], 0, strides[n - 3], strides[n - 2], strides[n - 1]};
  for (size_t axis = n - 3; axis-- > 0;) {
    if (sizes[axis] == 1) continue;
    if (p.images > 1 && strides[axis] != p.image_stride * p.images) return false;
    if (p.images == 1) p.image_stride = strides[axis];
    p.images *= sizes[axis];
  }
  if (p.rows == 1 || p.row_stride == p.pixels * p.pixel_stride) p.pixels *= p.rows, p.rows = 1;
  return true;
}

}  // namespace

void image_normalize_out(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value, const Tensor& out) {
  STD_TORCH_CHECK(x.sizes().size() >= 3 && sizes_of(x) == sizes_of(out) && out.is_contiguous(),
                  "evenkeel: expected (..., channels, height, width) and a contiguous result of that shape");
  if (x.numel() == 0) return;
  Images p;
  const bool even = describe(x, p);
  const Tensor source = even ? x : as_contiguous(x);
  if (!even) describe(source, p);
  const Tensor centre = as_contiguous(mean), spread = as_contiguous(std);
  STD_TORCH_CHECK(centre.scalar_type() == ScalarType::Double && spread.scalar_type() == ScalarType::Double &&
                      centre.numel() == p.channels && spread.numel() == p.channels,
                  "evenkeel: expected a float64 mean and std for each channel");
  std::vector<ByteAffine> affine(static_cast<size_t>(p.channels));
  ImageMap map{dtype_of(source), dtype_of(out), p.pixel_stride, p.channel_stride, p.area(), max_value};
  STD_TORCH_CHECK(is_floating(map.to), "evenkeel: out must be floating");
  map.mean = static_cast<const double*>(memory_of(centre));
  map.std = static_cast<const double*>(memory_of(spread));
  if (map.from == DType::uint8 && map.to != DType::float64 && kernels().find_affine(map, p.channels, affine.data())) {
    map.bytes = affine.data();
  }
  const int64_t from_size = size_of(map.from), to_size = size_of(map.to);
  // half a line at a time, past the caches is slower
  map.stream = to_size >= 4 && is_past_caches(bytes_of(source) + bytes_of(out));

  // a task: some pixels of a row, of all channels where these are neighbours, else of one
  constexpr int64_t piece = 16384, grain = 32768;
  const bool together = p.pixel_stride != 1 || p.channels == 1;
  const int64_t share = together ? p.channels : 1, groups = p.channels / share;
  const int64_t pieces = ceil_divide(p.pixels, piece), longest = std::min(piece, p.pixels) * share;
  const char* const from = static_cast<const char*>(memory_of(source));
  char* const to = static_cast<char*>(memory_of(out));
  parallel_for(p.images * groups * p.rows * pieces, ceil_divide(grain, longest), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t pixel = task % pieces * piece, row = task / pieces % p.rows;
      const int64_t first = task / pieces / p.rows % groups * share, image = task / pieces / p.rows / groups;
      const int64_t read = image * p.image_stride + first * p.channel_stride + row * p.row_stride +
                           pixel * p.pixel_stride;
      const int64_t written = (image * p.channels + first) * p.area() + row * p.pixels + pixel;
      const int64_t count = std::min(piece, p.pixels - pixel);
      kernels().normalize(map, from + read * from_size, to + written * to_size, count, first, share);
    }
  });
}

Tensor image_normalize(const Tensor& x, const Tensor& mean, const Tensor& std, double max_value, ScalarType dtype) {
  STD_TORCH_CHECK(x.sizes().size() >= 3, "evenkeel: expected (..., channels, height, width)");
  Tensor y = empty(sizes_of(x), dtype);
  image_normalize_out(x, mean, std, max_value, y);
  return y;
}

}  // namespace evenkeel
