// Vectors of 64 bytes in the compilers' own vector types, and the conversions between float and 16-bit formats.
//
// Every kernel file is compiled once per instruction set, with EVENKEEL_ISA naming it; all code lives in a namespace
// of that name, so that the linker cannot merge a function built for AVX-512 with its baseline copy. The vector
// width does not depend on the instruction set and fused multiply-add is off (-ffp-contract=off), so all of them
// give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/types.h"

namespace evenkeel::EVENKEEL_ISA {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class C>
struct Lanes;
template <>
struct Lanes<float> {
  static constexpr int width = 16;
  typedef float vector __attribute__((vector_size(64)));
  typedef int32_t mask __attribute__((vector_size(64)));
};
template <>
struct Lanes<double> {
  static constexpr int width = 8;
  typedef double vector __attribute__((vector_size(64)));
  typedef int64_t mask __attribute__((vector_size(64)));
};

template <class C>
using Vector = typename Lanes<C>::vector;
template <class C>
using LaneMask = typename Lanes<C>::mask;

using Floats = Vector<float>;
using Ints = LaneMask<float>;
using Doubles = Vector<double>;
typedef uint32_t UnsignedInts __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(32)));
typedef float HalfFloats __attribute__((vector_size(32)));

// The compute dtype (opmath).
template <class T>
using Opmath = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class To, class From>
inline To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

inline UnsignedInts choose(Ints condition, UnsignedInts yes, UnsignedInts no) {
  const UnsignedInts keep = bits_as<UnsignedInts>(condition);
  return (yes & keep) | (no & ~keep);
}
template <class C>
inline Vector<C> choose_lanes(LaneMask<C> lanes, Vector<C> yes, Vector<C> no) {
#if defined(__AVX512F__)
  return lanes ? yes : no;
#else
  return bits_as<Vector<C>>((bits_as<LaneMask<C>>(yes) & lanes) | (bits_as<LaneMask<C>>(no) & ~lanes));
#endif
}

// 0 in the other lanes.
template <class C>
inline Vector<C> keep_lanes(Vector<C> v, LaneMask<C> lanes) {
  return bits_as<Vector<C>>(bits_as<LaneMask<C>>(v) & lanes);
}
template <class C>
inline LaneMask<C> lanes_below(int count) {
  LaneMask<C> number;
  for (int lane = 0; lane < Lanes<C>::width; ++lane) number[lane] = lane;
  return number < count;
}

inline Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline Doubles load(const double* p) {
  Doubles v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

#if defined(__AVX512F__)
// What __builtin_convertvector and choices between lanes mean, for which compilers make two halves and twice as many
// instructions. The masked forms, because the others read an undefined register, of which g++ warns.
inline Floats from_bf16(__m256i v) {
  return bits_as<Floats>(bits_as<UnsignedInts>(_mm512_maskz_cvtepu16_epi32(0xffff, v)) << 16);
}
inline Floats from_f16(__m256i v) { return bits_as<Floats>(_mm512_maskz_cvtph_ps(0xffff, v)); }
inline __m256i to_bf16(Floats v) {
  const UnsignedInts bits = bits_as<UnsignedInts>(v);
  const __m512i rounded = bits_as<__m512i>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(bits_as<__m512>(v), bits_as<__m512>(v), _CMP_UNORD_Q);
  const __m512i result = _mm512_mask_mov_epi32(rounded, is_nan, bits_as<__m512i>((bits | 0x400000u) >> 16));
  return _mm512_maskz_cvtepi32_epi16(0xffff, result);
}
inline __m256i to_f16(Floats v) {
  return _mm512_maskz_cvtps_ph(0xffff, bits_as<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Floats load(const bf16* p) { return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Floats load(const f16* p) { return from_f16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
#else
inline UnsignedInts load_16_bits(const void* p) {
  Shorts s;
  std::memcpy(&s, p, sizeof(s));
  return __builtin_convertvector(s, UnsignedInts);
}
inline Floats load(const bf16* p) { return bits_as<Floats>(load_16_bits(p) << 16); }

inline Floats load(const f16* p) {
#if defined(__F16C__)
  HalfFloats halves[2];
  const __m128i* source = reinterpret_cast<const __m128i*>(p);
  halves[0] = bits_as<HalfFloats>(_mm256_cvtph_ps(_mm_loadu_si128(source)));
  halves[1] = bits_as<HalfFloats>(_mm256_cvtph_ps(_mm_loadu_si128(source + 1)));
  return bits_as<Floats>(halves);
#else
  const UnsignedInts half = load_16_bits(p);
  const UnsignedInts magnitude = half & 0x7fffu;
  UnsignedInts bits = (magnitude << 13) + ((127u - 15u) << 23);
  bits = choose(magnitude >= 0x7c00u, bits + ((128u - 16u) << 23), bits);  // infinity and NaN
  const Floats subnormal = __builtin_convertvector(bits_as<Ints>(magnitude), Floats) * 0x1p-24f;
  bits = choose(magnitude < 0x0400u, bits_as<UnsignedInts>(subnormal), bits);
  return bits_as<Floats>(bits | ((half & 0x8000u) << 16));
#endif
}
#endif

inline void store(float* p, Floats v) { std::memcpy(p, &v, sizeof(v)); }
inline void store(double* p, Doubles v) { std::memcpy(p, &v, sizeof(v)); }

#if defined(__AVX512F__)
inline void store(bf16* p, Floats v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
inline void store(f16* p, Floats v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(v)); }
#else
inline void store(bf16* p, Floats v) {
  const UnsignedInts bits = bits_as<UnsignedInts>(v);
  const UnsignedInts rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Shorts s = __builtin_convertvector(choose(v != v, bits | 0x400000u, rounded) >> 16, Shorts);
  std::memcpy(p, &s, sizeof(s));
}

inline void store(f16* p, Floats v) {
#if defined(__F16C__)
  __m256 halves[2];
  std::memcpy(halves, &v, sizeof(v));
  __m128i* target = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(target, _mm256_cvtps_ph(halves[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(target + 1, _mm256_cvtps_ph(halves[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  const UnsignedInts bits = bits_as<UnsignedInts>(v);
  const UnsignedInts magnitude = bits & 0x7fffffffu;
  UnsignedInts half = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24, the spacing of subnormal halves
  const Floats shifted = bits_as<Floats>(magnitude) + 0.5f;
  half = choose(magnitude < 0x38800000u, bits_as<UnsignedInts>(shifted) - 0x3f000000u, half);
  half = choose(magnitude >= 0x477ff000u, UnsignedInts{} + 0x7c00u, half);
  half = choose(magnitude > 0x7f800000u, ((magnitude >> 13) & 0x3ffu) | 0x7e00u, half);
  const Shorts s = __builtin_convertvector(half | ((bits >> 16) & 0x8000u), Shorts);
  std::memcpy(p, &s, sizeof(s));
#endif
}
#endif

// Writes past the caches: an ordinary store first reads the line that it overwrites. p lies at a multiple of `bytes` or
// of a cache line.
template <int bytes>
inline void stream_bytes(void* p, const void* v) {
  char* const to = static_cast<char*>(p);
  const char* const from = static_cast<const char*>(v);
#if defined(__AVX512F__)
  if constexpr (bytes >= 64) {
    for (int i = 0; i < bytes; i += 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
    }
    return;
  }
#endif
#if defined(__AVX__)
  for (int i = 0; i < bytes; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
#elif defined(__x86_64__)
  for (int i = 0; i < bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
#else
  std::memcpy(to, from, bytes);
#endif
}
template <class T, class V>
inline void stream(T* p, V v) {
  T ready[sizeof(V) / sizeof(Opmath<T>)];
  store(ready, v);
  stream_bytes<sizeof(ready)>(p, ready);
}

// Calls body(number of a dtype).
template <class Body>
inline void with_floating(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::float64: return body(double{});
    case DType::bfloat16: return body(bf16{});
    case DType::float16: return body(f16{});
    default: return body(float{});
  }
}

}  // namespace evenkeel::EVENKEEL_ISA
