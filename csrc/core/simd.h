// Vectors of 64 bytes, and the conversions between float and 16-bit formats.
//
// Every kernel file is compiled once per instruction set, with EVENKEEL_ISA naming it; all code lives in a namespace
// of that name, so that the linker cannot merge a function built for AVX-512 with its AVX2 copy. The vector
// width does not depend on the instruction set and the compiler fuses no multiplication with an addition
// (-ffp-contract=off), so all of them give the same bits.
#pragma once

#include <cmath>

#include "core/types.h"
#include "core/vectors.h"

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
  using vector = VectorOf<float, 64>;
  using mask = VectorOf<int32_t, 64>;
};
template <>
struct Lanes<double> {
  static constexpr int width = 8;
  using vector = VectorOf<double, 64>;
  using mask = VectorOf<int64_t, 64>;
};

template <class C>
using Vector = typename Lanes<C>::vector;
template <class C>
using LaneMask = typename Lanes<C>::mask;

using Floats = Vector<float>;
using Ints = LaneMask<float>;
using Doubles = Vector<double>;
using UnsignedInts = VectorOf<uint32_t, 64>;
using Shorts = VectorOf<uint16_t, 32>;
using HalfFloats = VectorOf<float, 32>;
using HalfDoubles = VectorOf<double, 32>;

// The compute dtype (opmath).
template <class T>
using Opmath = std::conditional_t<std::is_same_v<T, double>, double, float>;

// 0 in the other lanes.
template <class C>
EVENKEEL_INLINE Vector<C> keep_lanes(Vector<C> v, LaneMask<C> lanes) {
  return bits_as<Vector<C>>(bits_as<LaneMask<C>>(v) & lanes);
}
template <class C>
EVENKEEL_INLINE LaneMask<C> lanes_below(int count) {
  static constexpr std::conditional_t<sizeof(C) == 4, int32_t, int64_t> numbers[] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                                                     8, 9, 10, 11, 12, 13, 14, 15};
  return load_bytes_of<LaneMask<C>>(numbers) < count;
}

// a * b + c, rounded once. Every level that is built has the instruction; -ffp-contract=off leaves it to this function,
// so that all levels round in the same places.
template <class V>
EVENKEEL_INLINE V fused(const V& a, const V& b, const V& c) {
  if constexpr (is_joined<V>) {
    return {fused(a.low, b.low, c.low), fused(a.high, b.high, c.high)};
  } else {
    V v;
    for (size_t i = 0; i < sizeof(V) / sizeof(v[0]); ++i) v[i] = std::fma(a[i], b[i], c[i]);
    return v;
  }
}
#if defined(__AVX512F__)
template <>
EVENKEEL_INLINE Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  return bits_as<Floats>(_mm512_fmadd_ps(bits_as<__m512>(a), bits_as<__m512>(b), bits_as<__m512>(c)));
}
template <>
EVENKEEL_INLINE Doubles fused(const Doubles& a, const Doubles& b, const Doubles& c) {
  return bits_as<Doubles>(_mm512_fmadd_pd(bits_as<__m512d>(a), bits_as<__m512d>(b), bits_as<__m512d>(c)));
}
#elif defined(__FMA__)
template <>
EVENKEEL_INLINE HalfFloats fused(const HalfFloats& a, const HalfFloats& b, const HalfFloats& c) {
  return bits_as<HalfFloats>(_mm256_fmadd_ps(bits_as<__m256>(a), bits_as<__m256>(b), bits_as<__m256>(c)));
}
template <>
EVENKEEL_INLINE HalfDoubles fused(const HalfDoubles& a, const HalfDoubles& b, const HalfDoubles& c) {
  return bits_as<HalfDoubles>(_mm256_fmadd_pd(bits_as<__m256d>(a), bits_as<__m256d>(b), bits_as<__m256d>(c)));
}
#endif

EVENKEEL_INLINE Floats load(const float* p) { return load_bytes_of<Floats>(p); }
EVENKEEL_INLINE Doubles load(const double* p) { return load_bytes_of<Doubles>(p); }

#if defined(__AVX512F__)
// What __builtin_convertvector and choices between lanes mean, for which compilers make two halves and twice as many
// instructions. The masked forms, because the others read an undefined register, of which g++ warns.
EVENKEEL_INLINE Floats from_bf16(__m256i v) {
  return bits_as<Floats>(bits_as<UnsignedInts>(_mm512_maskz_cvtepu16_epi32(0xffff, v)) << 16);
}
EVENKEEL_INLINE Floats from_f16(__m256i v) { return bits_as<Floats>(_mm512_maskz_cvtph_ps(0xffff, v)); }
EVENKEEL_INLINE __m256i to_bf16(Floats v) {
  const __m512i bits = bits_as<__m512i>(v);
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(bits_as<__m512>(v), bits_as<__m512>(v), _CMP_UNORD_Q);
  __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  rounded = _mm512_mask_add_epi32(rounded, is_odd, rounded, _mm512_set1_epi32(1));
  rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_maskz_cvtepi32_epi16(0xffff, bits_as<__m512i>(bits_as<UnsignedInts>(rounded) >> 16));
}
EVENKEEL_INLINE __m256i to_f16(Floats v) {
  return _mm512_maskz_cvtps_ph(0xffff, bits_as<__m512>(v), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
EVENKEEL_INLINE Floats load(const bf16* p) {
  return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
EVENKEEL_INLINE Floats load(const f16* p) { return from_f16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
#else
// By halves: a register that is read once is not taken apart.
using HalfShorts = VectorOf<uint16_t, 16>;
EVENKEEL_INLINE UnsignedInts widened(const HalfShorts& low, const HalfShorts& high) {
  return join<UnsignedInts>(convert<HalfOf<UnsignedInts>>(low), convert<HalfOf<UnsignedInts>>(high));
}
EVENKEEL_INLINE Floats from_16_bits(const bf16*, const HalfShorts& low, const HalfShorts& high) {
  return bits_as<Floats>(widened(low, high) << 16);
}
EVENKEEL_INLINE Floats from_16_bits(const f16*, const HalfShorts& low, const HalfShorts& high) {
#if defined(__F16C__)
  return {bits_as<HalfFloats>(_mm256_cvtph_ps(bits_as<__m128i>(low))),
          bits_as<HalfFloats>(_mm256_cvtph_ps(bits_as<__m128i>(high)))};
#else
  const UnsignedInts half = widened(low, high);
  const UnsignedInts magnitude = half & 0x7fffu;
  UnsignedInts bits = (magnitude << 13) + ((127u - 15u) << 23);
  bits = choose(magnitude >= 0x7c00u, bits + ((128u - 16u) << 23), bits);  // infinity and NaN
  const Floats subnormal = convert<Floats>(bits_as<Ints>(magnitude)) * 0x1p-24f;
  bits = choose(magnitude < 0x0400u, bits_as<UnsignedInts>(subnormal), bits);
  return bits_as<Floats>(bits | ((half & 0x8000u) << 16));
#endif
}
template <class T>
EVENKEEL_INLINE Floats load(const T* p) {
  return from_16_bits(p, load_bytes_of<HalfShorts>(p), load_bytes_of<HalfShorts>(p + 8));
}
#if defined(__AVX2__)
// Eight are read into both halves of a register, and one shuffle of bytes takes four of them in each to where float has
// them: two instructions, for which widening and a shift take four.
EVENKEEL_INLINE HalfFloats load_half(const bf16* p) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i upper_halves = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,      //
                                                -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
  return bits_as<HalfFloats>(_mm256_shuffle_epi8(both, upper_halves));
}
EVENKEEL_INLINE Floats load(const bf16* p) { return {load_half(p), load_half(p + 8)}; }
#endif
#endif

EVENKEEL_INLINE void store(float* p, Floats v) { store_bytes_of(p, v); }
EVENKEEL_INLINE void store(double* p, Doubles v) { store_bytes_of(p, v); }

#if defined(__AVX512F__)
EVENKEEL_INLINE void store(bf16* p, Floats v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
EVENKEEL_INLINE void store(f16* p, Floats v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(v)); }
#else
// The lower halves of integers below 2^16.
EVENKEEL_INLINE Shorts narrowed(const UnsignedInts& v) {
#if defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32(bits_as<__m256i>(v.low), bits_as<__m256i>(v.high));
  return bits_as<Shorts>(_mm256_permute4x64_epi64(packed, 0xd8));  // it packs within 16 bytes
#else
  return convert<Shorts>(v);
#endif
}
EVENKEEL_INLINE bool any_nan(const Floats& v) {
#if defined(__AVX__)
  return _mm256_movemask_ps(_mm256_cmp_ps(bits_as<__m256>(v.low), bits_as<__m256>(v.high), _CMP_UNORD_Q)) != 0;
#else
  return true;  // asking costs more than choosing
#endif
}
EVENKEEL_INLINE Shorts to_bf16(const Floats& v) {
  const UnsignedInts bits = bits_as<UnsignedInts>(v);
  UnsignedInts rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  if (__builtin_expect(any_nan(v), 0)) rounded = choose(v != v, bits | 0x400000u, rounded);
  return narrowed(rounded >> 16);
}
EVENKEEL_INLINE Shorts to_f16(const Floats& v) {
#if defined(__F16C__)
  constexpr int rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return bits_as<Shorts>(_mm256_set_m128i(_mm256_cvtps_ph(bits_as<__m256>(v.high), rounding),
                                          _mm256_cvtps_ph(bits_as<__m256>(v.low), rounding)));
#else
  const UnsignedInts bits = bits_as<UnsignedInts>(v);
  const UnsignedInts magnitude = bits & 0x7fffffffu;
  UnsignedInts half = (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24, the spacing of subnormal halves
  const Floats shifted = bits_as<Floats>(magnitude) + 0.5f;
  half = choose(magnitude < 0x38800000u, bits_as<UnsignedInts>(shifted) - 0x3f000000u, half);
  half = choose(magnitude >= 0x477ff000u, UnsignedInts{} + 0x7c00u, half);
  half = choose(magnitude > 0x7f800000u, ((magnitude >> 13) & 0x3ffu) | 0x7e00u, half);
  return convert<Shorts>(half | ((bits >> 16) & 0x8000u));
#endif
}
// At once: two stores that are read as one, as in `stream`, would have to reach the cache first.
EVENKEEL_INLINE void store(bf16* p, Floats v) { store_bytes_of(p, to_bf16(v)); }
EVENKEEL_INLINE void store(f16* p, Floats v) { store_bytes_of(p, to_f16(v)); }
#endif

// A line that will be read or written is on its way into the caches meanwhile.
EVENKEEL_INLINE void fetch(const void* p) { __builtin_prefetch(p, 0, 2); }
EVENKEEL_INLINE void fetch_to_write(const void* p) { __builtin_prefetch(p, 1, 2); }

// Writes past the caches: an ordinary store first reads the line that it overwrites. p lies at a multiple of `bytes` or
// of a cache line.
template <int bytes>
EVENKEEL_INLINE void stream_bytes(void* p, const void* v) {
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
EVENKEEL_INLINE void stream(T* p, V v) {
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
