// Sixteen numbers of any type as two vectors of double, and back. Included by kernel files only, after EVENKEEL_ISA.
#pragma once

#include <type_traits>

#include "core/doubles.h"

namespace evenkeel::EVENKEEL_ISA {

template <class T>
inline constexpr bool is_float = std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

inline void widen(Ints v, Doubles (&out)[2]) {
#if defined(__AVX512F__)
  const __m512i whole = bits_as<__m512i>(v);
  out[0] = bits_as<Doubles>(_mm512_maskz_cvtepi32_pd(0xff, _mm512_maskz_extracti32x8_epi32(0xff, whole, 0)));
  out[1] = bits_as<Doubles>(_mm512_maskz_cvtepi32_pd(0xff, _mm512_maskz_extracti32x8_epi32(0xff, whole, 1)));
#else
  out[0] = convert<Doubles>(v.low);
  out[1] = convert<Doubles>(v.high);
#endif
}

using Bytes = VectorOf<uint8_t, 16>;

// Bytes by way of 16 bits: g++ 12 converts them to 32 one by one.
template <class Narrow>
inline Ints as_ints(Narrow v) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<Narrow, Bytes>) {
    return bits_as<Ints>(_mm512_maskz_cvtepu8_epi32(0xffff, bits_as<__m128i>(v)));
  }
#endif
  if constexpr (sizeof(Narrow) == 16) {
    using T = std::remove_reference_t<decltype(v[0])>;
    using Wider = VectorOf<std::conditional_t<std::is_signed_v<T>, int16_t, uint16_t>, 32>;
    return convert<Ints>(convert<Wider>(v));
  } else {
    return convert<Ints>(v);
  }
}

inline void load_doubles(const double* p, Doubles (&out)[2]) {
  out[0] = load(p);
  out[1] = load(p + 8);
}
inline void load_doubles(const int64_t* p, Doubles (&out)[2]) {
  for (int i = 0; i < 2; ++i) out[i] = convert<Doubles>(load_bytes_of<LaneMask<double>>(p + 8 * i));
}
template <class T>
inline void load_doubles(const T* p, Doubles (&out)[2]) {
  if constexpr (is_float<T>) {
    widen(load(p), out);
  } else {
    widen(as_ints(load_bytes_of<VectorOf<T, 16 * sizeof(T)>>(p)), out);
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

template <class T>
inline void stream_doubles(T* p, const Doubles (&v)[2]) {
  T ready[16];
  store_doubles(ready, v);
  stream_bytes<sizeof(ready)>(p, ready);
}

// Calls body(number of a dtype).
template <class Body>
inline void with_number(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::uint8: return body(uint8_t{});
    case DType::int8: return body(int8_t{});
    case DType::int16: return body(int16_t{});
    case DType::uint16: return body(uint16_t{});
    case DType::int32: return body(int32_t{});
    case DType::int64: return body(int64_t{});
    default: return with_floating(dtype, body);
  }
}

}  // namespace evenkeel::EVENKEEL_ISA
