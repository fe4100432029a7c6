// Images to normalized float planes. Compiled once per instruction set.
//
// The result is that of double arithmetic with two divisions, rounded. Bytes take a shorter way where that is found to
// give the same for all 256 of them. With fused operations it is in float: the difference from a shift of 16 binary
// places is exact, what the shift and the scale lack enters below the last place, and one rounding is left.
#include "images/kernels.h"

#include "core/numbers.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

inline void define(const ImageMap& a, int64_t c, Doubles (&v)[2]) {
  for (int i = 0; i < 2; ++i) v[i] = (v[i] / a.max_value - a.mean[c]) / a.std[c];
}

inline Floats map_bytes(const ByteAffine& b, Ints bytes) {
  const Floats zero = {}, d = convert<Floats>(bytes) - b.shift;
  return fused(d, zero + b.scale, fused(d, zero + b.scale_low, zero + b.rest));
}

bool find_affine(const ImageMap& a, int64_t channels, ByteAffine* forms) {
  for (int64_t c = 0; c < channels; ++c) {
    ByteAffine& b = forms[c];
    const double wide_shift = a.max_value * a.mean[c];
    const double wide_scale = 1 / (a.max_value * a.std[c]);
    const double large = 0x1.8p36;  // adding it rounds to a multiple of 2^-16
    b.shift = static_cast<float>((wide_shift + large) - large);
    b.scale = static_cast<float>(wide_scale);
    b.scale_low = static_cast<float>(wide_scale - b.scale);
    b.rest = static_cast<float>((b.shift - wide_shift) * wide_scale);
    for (int32_t first = 0; first < 256; first += 16) {
      int32_t numbers[16];
      for (int l = 0; l < 16; ++l) numbers[l] = first + l;
      const Ints bytes = load_bytes_of<Ints>(numbers);
      Doubles v[2];
      widen(bytes, v);
      define(a, c, v);
      const Floats exact = as_floats(v), short_way = map_bytes(b, bytes);
      if (std::memcmp(&exact, &short_way, sizeof(exact)) != 0) return false;
    }
  }
  return true;
}

inline Bytes load_bytes(const uint8_t* p) { return load_bytes_of<Bytes>(p); }

// Sixteen pixels of one channel, from pixels of a known size.
struct OneByte {
  Bytes bytes;
  static constexpr int size = 1;
  explicit OneByte(const uint8_t* p) : bytes(load_bytes(p)) {}
  template <int c>
  Ints channel() const {
    return as_ints(bytes);
  }
};

struct ThreeBytes {
  Bytes v[3];
  static constexpr int size = 3;
  explicit ThreeBytes(const uint8_t* p) : v{load_bytes(p), load_bytes(p + 16), load_bytes(p + 32)} {}
  template <int c>
  Ints channel() const {
#if defined(__clang__)
#define EVENKEEL_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define EVENKEEL_PICK(a, b, ...) __builtin_shuffle(a, b, Bytes{__VA_ARGS__})
#endif
    if constexpr (c == 0) {
      const Bytes low = EVENKEEL_PICK(v[0], v[1], 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0, 0, 0, 0, 0);
      return as_ints(EVENKEEL_PICK(low, v[2], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29));
    } else if constexpr (c == 1) {
      const Bytes low = EVENKEEL_PICK(v[0], v[1], 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 0, 0, 0, 0, 0);
      return as_ints(EVENKEEL_PICK(low, v[2], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 21, 24, 27, 30));
    } else {
      const Bytes low = EVENKEEL_PICK(v[0], v[1], 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0, 0, 0, 0, 0, 0);
      return as_ints(EVENKEEL_PICK(low, v[2], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 22, 25, 28, 31));
    }
#undef EVENKEEL_PICK
  }
};

struct FourBytes {
  UnsignedInts pixels;
  static constexpr int size = 4;
  explicit FourBytes(const uint8_t* p) : pixels(load_bytes_of<UnsignedInts>(p)) {}
  template <int c>
  Ints channel() const {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    constexpr int place = 24 - 8 * c;
#else
    constexpr int place = 8 * c;
#endif
    return bits_as<Ints>((pixels >> place) & 255u);
  }
};

template <int c, class Pixels, class To>
inline void put_channel(const ImageMap& a, const Pixels& pixels, int64_t first, To* y, bool past_caches) {
  const Floats v = map_bytes(a.bytes[first + c], pixels.template channel<c>());
  if (past_caches) {
    stream(y + c * a.plane, v);
  } else {
    store(y + c * a.plane, v);
  }
}

// Whole vectors of bytes; returns how many pixels are done.
template <class Pixels, int channels, class To>
int64_t normalize_bytes(const ImageMap& a, const uint8_t* x, To* y, int64_t n, int64_t first) {
  constexpr int line = sizeof(To) == 2 ? 32 : 64;
  const bool aligned = reinterpret_cast<uintptr_t>(y) % line == 0 && (channels == 1 || a.plane % 16 == 0);
  const auto walk = [&](bool stream) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
      if ((i + 16) * Pixels::size > n * Pixels::size - (Pixels::size - channels)) break;  // the last pixel may be short
      const Pixels pixels(x + i * Pixels::size);
      put_channel<0>(a, pixels, first, y + i, stream);
      if constexpr (channels > 1) put_channel<1>(a, pixels, first, y + i, stream);
      if constexpr (channels > 2) put_channel<2>(a, pixels, first, y + i, stream);
      if constexpr (channels > 3) put_channel<3>(a, pixels, first, y + i, stream);
    }
    return i;
  };
  if (!a.stream || !aligned) return walk(false);
  const int64_t done = walk(true);
  finish_streams();
  return done;
}

template <class To>
int64_t normalize_bytes(const ImageMap& a, const uint8_t* x, To* y, int64_t n, int64_t first, int64_t channels) {
  if (!a.bytes) return 0;
  if (a.pixel_stride == 1 && channels == 1) return normalize_bytes<OneByte, 1>(a, x, y, n, first);
  if (a.channel_stride != 1) return 0;
  if (a.pixel_stride == 3 && channels == 3) return normalize_bytes<ThreeBytes, 3>(a, x, y, n, first);
  if (a.pixel_stride == 4 && channels == 3) return normalize_bytes<FourBytes, 3>(a, x, y, n, first);
  if (a.pixel_stride == 4 && channels == 4) return normalize_bytes<FourBytes, 4>(a, x, y, n, first);
  return 0;
}

// The pixels from i on of one channel, of any type and stride.
template <class From, class To>
void normalize_channel(const ImageMap& a, const From* x, To* y, int64_t i, int64_t n, int64_t c) {
  for (; i < n; i += 16) {
    const int64_t count = n - i < 16 ? n - i : 16;
    From from[16] = {};
    for (int64_t l = 0; l < count; ++l) from[l] = x[(i + l) * a.pixel_stride];
    To to[16];
    if constexpr (std::is_same_v<From, uint8_t> && !std::is_same_v<To, double>) {
      if (a.bytes) {
        store(to, map_bytes(a.bytes[c], as_ints(load_bytes(from))));
        std::memcpy(y + i, to, count * sizeof(To));
        continue;
      }
    }
    Doubles v[2];
    load_doubles(from, v);
    define(a, c, v);
    store_doubles(to, v);
    std::memcpy(y + i, to, count * sizeof(To));
  }
}

void normalize(const ImageMap& a, const void* x, void* y, int64_t n, int64_t first, int64_t channels) {
  with_number(a.from, [&](auto from) {
    with_floating(a.to, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      int64_t done = 0;
      if constexpr (std::is_same_v<From, uint8_t> && !std::is_same_v<To, double>) {
        done = normalize_bytes(a, static_cast<const uint8_t*>(x), static_cast<To*>(y), n, first, channels);
      }
      for (int64_t c = 0; c < channels && done < n; ++c) {
        normalize_channel(a, static_cast<const From*>(x) + c * a.channel_stride, static_cast<To*>(y) + c * a.plane,
                          done, n, first + c);
      }
    });
  });
}

}  // namespace

const ImagesKernels images_kernels = {find_affine, normalize};

}  // namespace evenkeel::EVENKEEL_ISA
