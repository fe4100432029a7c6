// Sixteen numbers of any type as two vectors of double, and back. Included by kernel files only, after EVENKEEL_ISA.
#pragma once

#include <type_traits>

#include "columns_kernels.h"
#include "simd.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace evenkeel {
namespace EVENKEEL_ISA {

template <class T>
inline constexpr bool is_float = std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

inline void widen(Ints v, Doubles (&out)[2]) {
#if defined(__AVX512F__)
  const __m512i whole = bits_as<__m512i>(v);
  out[0] = bits_as<Doubles>(_mm512_maskz_cvtepi32_pd(0xff, _mm512_maskz_extracti32x8_epi32(0xff, whole, 0)));
  out[1] = bits_as<Doubles>(_mm512_maskz_cvtepi32_pd(0xff, _mm512_maskz_extracti32x8_epi32(0xff, whole, 1)));
#else
  typedef int32_t HalfInts __attribute__((vector_size(32)));
  HalfInts halves[2];
  std::memcpy(halves, &v, sizeof(v));
  out[0] = __builtin_convertvector(halves[0], Doubles);
  out[1] = __builtin_convertvector(halves[1], Doubles);
#endif
}

typedef uint8_t Bytes __attribute__((vector_size(16)));

// Bytes by way of 16 bits: g++ 12 converts them to 32 one by one.
template <class Narrow>
inline Ints as_ints(Narrow v) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Narrow, Bytes>) return bits_as<Ints>(_mm512_maskz_cvtepu8_epi32(0xffff, bits_as<__m128i>(v)));
#endif
  if constexpr (sizeof(Narrow) == 16) {
    using T = std::remove_reference_t<decltype(v[0])>;
    typedef std::conditional_t<std::is_signed_v<T>, int16_t, uint16_t> Wider __attribute__((vector_size(32)));
    return __builtin_convertvector(__builtin_convertvector(v, Wider), Ints);
  } else {
    return __builtin_convertvector(v, Ints);
  }
}

inline void load_doubles(const double* p, Doubles (&out)[2]) {
  out[0] = load(p);
  out[1] = load(p + 8);
}
inline void load_doubles(const int64_t* p, Doubles (&out)[2]) {
  Lanes<double>::mask v[2];
  std::memcpy(v, p, sizeof(v));
  out[0] = __builtin_convertvector(v[0], Doubles);
  out[1] = __builtin_convertvector(v[1], Doubles);
}
template <class T>
inline void load_doubles(const T* p, Doubles (&out)[2]) {
  if constexpr (is_float<T>) {
    widen(load(p), out);
  } else {
    typedef T Narrow __attribute__((vector_size(16 * sizeof(T))));
    Narrow narrow;
    std::memcpy(&narrow, p, sizeof(narrow));
    widen(as_ints(narrow), out);
  }
}

inline void store_doubles(double* p, const Doubles (&v)[2]) {
  store(p, v[0]);
  store(p + 8, v[1]);
}
template <class T>
inline void store_doubles(T* p, const Doubles (&v)[2]) {
  store(p, as_floats(v));
}

// Writes past the caches: a plain store first reads the line it is going to overwrite. p is aligned to `bytes`.
template <int bytes>
inline void stream(void* p, const void* v) {
#if defined(__AVX512F__)
  if constexpr (bytes == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), _mm512_loadu_si512(v));
    return;
  }
#endif
#if defined(__AVX__)
  for (int i = 0; i < bytes / 32; ++i) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p) + i, _mm256_loadu_si256(static_cast<const __m256i*>(v) + i));
  }
#elif defined(__x86_64__)
  for (int i = 0; i < bytes / 16; ++i) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p) + i, _mm_loadu_si128(static_cast<const __m128i*>(v) + i));
  }
#else
  std::memcpy(p, v, bytes);
#endif
}
inline void end_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Sixteen elements that are ready in memory.
template <class T>
inline void stream_sixteen(T* p, const T* v) {
  constexpr int bytes = 16 * sizeof(T), piece = bytes < 64 ? bytes : 64;
  for (int i = 0; i < bytes; i += piece) stream<piece>(reinterpret_cast<char*>(p) + i, reinterpret_cast<const char*>(v) + i);
}
template <class T>
inline void stream_doubles(T* p, const Doubles (&v)[2]) {
  T buffer[16];
  store_doubles(buffer, v);
  stream_sixteen(p, buffer);
}

template <class Body>
inline void with_number(Number type, const Body& body) {
  switch (type) {
    case Number::float32: return body(float{});
    case Number::float64: return body(double{});
    case Number::bfloat16: return body(bf16{});
    case Number::float16: return body(f16{});
    case Number::uint8: return body(uint8_t{});
    case Number::int8: return body(int8_t{});
    case Number::int16: return body(int16_t{});
    case Number::uint16: return body(uint16_t{});
    case Number::int32: return body(int32_t{});
    case Number::int64: return body(int64_t{});
  }
}

template <class Body>
inline void with_floating(Number type, const Body& body) {
  switch (type) {
    case Number::float64: return body(double{});
    case Number::bfloat16: return body(bf16{});
    case Number::float16: return body(f16{});
    default: return body(float{});
  }
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
