// Vectors of doubles: from floats and back, folded to sums; the doubles of single elements.
#pragma once

#include "core/simd.h"

namespace evenkeel::EVENKEEL_ISA {

EVENKEEL_INLINE Doubles as_doubles(HalfFloats v) {
#if defined(__AVX512F__)
  return bits_as<Doubles>(_mm512_maskz_cvtps_pd(0xff, bits_as<__m256>(v)));
#else
  return convert<Doubles>(v);
#endif
}
// Both halves of a vector in double.
EVENKEEL_INLINE void widen(Floats v, Doubles (&out)[2]) {
#if defined(__AVX512F__)
  const __m512 whole = bits_as<__m512>(v);  // a copy of the halves would go through memory
  out[0] = bits_as<Doubles>(_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, whole, 0)));
  out[1] = bits_as<Doubles>(_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, whole, 1)));
#else
  out[0] = as_doubles(v.low);
  out[1] = as_doubles(v.high);
#endif
}
EVENKEEL_INLINE Doubles as_doubles(Floats v) {
  Doubles halves[2];
  widen(v, halves);
  return halves[0] + halves[1];
}
EVENKEEL_INLINE Doubles as_doubles(Doubles v) { return v; }

// Eight doubles rounded to the compute dtype.
template <class C>
struct Eight;
template <>
struct Eight<float> {
  using vector = HalfFloats;
  static vector from(Doubles v) {
#if defined(__AVX512F__)
    return bits_as<HalfFloats>(_mm512_maskz_cvtpd_ps(0xff, bits_as<__m512d>(v)));
#else
    return convert<HalfFloats>(v);
#endif
  }
  static Doubles widened(const float* p) {
#if defined(__AVX512F__)
    return as_doubles(load_bytes_of<HalfFloats>(p));
#else  // each half by itself: a whole register would be taken apart
    const auto half = [p](int i) { return convert<HalfDoubles>(load_bytes_of<VectorOf<float, 16>>(p + i)); };
    return {half(0), half(4)};
#endif
  }
};
template <>
struct Eight<double> {
  using vector = Doubles;
  static vector from(Doubles v) { return v; }
  static Doubles widened(const double* p) { return load(p); }
};

// Both halves rounded.
EVENKEEL_INLINE Floats as_floats(const Doubles (&v)[2]) {
#if defined(__AVX512F__)
  const __m512 low = _mm512_castps256_ps512(bits_as<__m256>(Eight<float>::from(v[0])));
  return bits_as<Floats>(_mm512_maskz_insertf32x8(0xffff, low, bits_as<__m256>(Eight<float>::from(v[1])), 1));
#else
  return {Eight<float>::from(v[0]), Eight<float>::from(v[1])};
#endif
}

template <class Mask>
EVENKEEL_INLINE bool any(const Mask& condition) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(bits_as<__m512i>(condition)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(bits_as<__m256>(condition.low | condition.high)) != 0;
#else
  const auto words = bits_as<LaneMask<double>>(condition);
  int64_t some = 0;
  for (int i = 0; i < 8; ++i) some |= words[i];
  return some != 0;
#endif
}

EVENKEEL_INLINE Doubles root_of(Doubles v) {
#if defined(__AVX512F__)
  return bits_as<Doubles>(_mm512_maskz_sqrt_pd(0xff, bits_as<__m512d>(v)));
#else
  double root[8];
  for (int i = 0; i < 8; ++i) root[i] = __builtin_sqrt(v[i]);
  return load(root);
#endif
}

// The lower half of a vector plus the upper: g++ moves a copy of the halves through memory.
EVENKEEL_INLINE HalfFloats fold(Floats v) {
#if defined(__AVX512F__)
  const __m512 whole = bits_as<__m512>(v);
  return bits_as<HalfFloats>(_mm512_maskz_extractf32x8_ps(0xff, whole, 0)) +
         bits_as<HalfFloats>(_mm512_maskz_extractf32x8_ps(0xff, whole, 1));
#else
  return v.low + v.high;
#endif
}
EVENKEEL_INLINE HalfDoubles fold(Doubles v) {
#if defined(__AVX512F__)
  const __m512d whole = bits_as<__m512d>(v);
  return bits_as<HalfDoubles>(_mm512_maskz_extractf64x4_pd(0xf, whole, 0)) +
         bits_as<HalfDoubles>(_mm512_maskz_extractf64x4_pd(0xf, whole, 1));
#else
  return v.low + v.high;
#endif
}

EVENKEEL_INLINE double sum_of_lanes(Doubles v) {
  const HalfDoubles h = fold(v);
  return (h[0] + h[2]) + (h[1] + h[3]);
}
// The sums of the lanes of eight vectors, each as sum_of_lanes adds.
EVENKEEL_INLINE Doubles sums_of_lanes(const Doubles (&v)[8]) {
#if defined(EVENKEEL_HAS_SHUFFLE) && defined(__AVX2__)  // HalfDoubles is one register
  const auto four = [&](int i) {
    const HalfDoubles a = fold(v[i]), b = fold(v[i + 1]), c = fold(v[i + 2]), d = fold(v[i + 3]);
    const HalfDoubles ac = __builtin_shufflevector(a, c, 0, 1, 4, 5) + __builtin_shufflevector(a, c, 2, 3, 6, 7);
    const HalfDoubles bd = __builtin_shufflevector(b, d, 0, 1, 4, 5) + __builtin_shufflevector(b, d, 2, 3, 6, 7);
    return __builtin_shufflevector(ac, bd, 0, 4, 2, 6) + __builtin_shufflevector(ac, bd, 1, 5, 3, 7);
  };
  return join<Doubles>(four(0), four(4));
#else
  double sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = sum_of_lanes(v[i]);
  return load(sums);
#endif
}
EVENKEEL_INLINE float sum_of_lanes(Floats v) {
  const HalfFloats h = fold(v);
  return ((h[0] + h[4]) + (h[2] + h[6])) + ((h[1] + h[5]) + (h[3] + h[7]));
}

EVENKEEL_INLINE HalfFloats sums_of_lanes(const Floats (&v)[8]) {
#if defined(EVENKEEL_HAS_SHUFFLE) && defined(__AVX__)  // HalfFloats is one register
  const auto halves = [&](int i) {  // of rows i and i + 4
    const HalfFloats a = fold(v[i]), b = fold(v[i + 4]);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  };
  const auto quarters = [&](int i) {
    const HalfFloats a = halves(i), b = halves(i + 1);
    return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
           __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  };
  const HalfFloats a = quarters(0), b = quarters(2);
  return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
         __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
#else
  float sums[8];
  for (int i = 0; i < 8; ++i) sums[i] = sum_of_lanes(v[i]);
  return load_bytes_of<HalfFloats>(sums);
#endif
}

EVENKEEL_INLINE float to_float(float v) { return v; }
EVENKEEL_INLINE float to_float(bf16 v) { return bits_as<float>(static_cast<uint32_t>(v.bits) << 16); }
EVENKEEL_INLINE float to_float(f16 v) {
  f16 buffer[16] = {v};
  return load(buffer)[0];
}
EVENKEEL_INLINE double to_double(double v) { return v; }
template <class T>
EVENKEEL_INLINE double to_double(T v) {
  return to_float(v);
}

}  // namespace evenkeel::EVENKEEL_ISA
