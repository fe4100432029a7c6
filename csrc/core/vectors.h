// Vectors of any length in the compilers' own vector types: one that is longer than a register is made of two halves.
// g++ keeps a vector type that is longer than a register in memory and moves it in pieces of 8 bytes, which takes
// two to four times as long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace evenkeel::EVENKEEL_ISA {

#if defined(__AVX512F__)
constexpr int register_bytes = 64;
#elif defined(__AVX__)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 16;
#endif

template <class E, int bytes>
struct Joined;

template <class E, int bytes, bool fits = bytes <= register_bytes>
struct VectorType {
  typedef E type __attribute__((vector_size(bytes)));
};
template <class E, int bytes>
struct VectorType<E, bytes, false> {
  using type = Joined<E, bytes>;
};
template <class E, int bytes>
using VectorOf = typename VectorType<E, bytes>::type;

template <class V>
inline constexpr bool is_joined = false;
template <class E, int bytes>
inline constexpr bool is_joined<Joined<E, bytes>> = true;

template <class V>
using ElementOf = std::remove_cv_t<std::remove_reference_t<decltype(std::declval<V&>()[0])>>;
template <class V>
using HalfOf = VectorOf<ElementOf<V>, sizeof(V) / 2>;

#define EVENKEEL_INLINE inline __attribute__((always_inline))

// Element by element, as of the compilers' own vectors: arithmetic, and comparisons that give a mask.
template <class E, int bytes>
struct Joined {
  using Half = VectorOf<E, bytes / 2>;
  using Mask = Joined<std::conditional_t<sizeof(E) == 4, int32_t, int64_t>, bytes>;
  Half low, high;

  EVENKEEL_INLINE E operator[](int i) const {
    constexpr int half = bytes / 2 / static_cast<int>(sizeof(E));
    return i < half ? low[i] : high[i - half];
  }
  EVENKEEL_INLINE friend Joined operator-(const Joined& a) { return {-a.low, -a.high}; }
  EVENKEEL_INLINE friend Joined operator~(const Joined& a) { return {~a.low, ~a.high}; }

#define EVENKEEL_OPERATION(op)                                                                                        \
  EVENKEEL_INLINE friend Joined operator op(const Joined& a, const Joined& b) {                                       \
    return {a.low op b.low, a.high op b.high};                                                                        \
  }                                                                                                                   \
  template <class S, class = std::enable_if_t<std::is_arithmetic_v<S>>>                                               \
  EVENKEEL_INLINE friend Joined operator op(const Joined& a, S b) {                                                   \
    return {a.low op static_cast<E>(b), a.high op static_cast<E>(b)};                                                 \
  }                                                                                                                   \
  template <class S, class = std::enable_if_t<std::is_arithmetic_v<S>>>                                               \
  EVENKEEL_INLINE friend Joined operator op(S a, const Joined& b) {                                                   \
    return {static_cast<E>(a) op b.low, static_cast<E>(a) op b.high};                                                 \
  }                                                                                                                   \
  template <class B>                                                                                                  \
  EVENKEEL_INLINE Joined& operator op##=(const B& b) {                                                                \
    return *this = *this op b;                                                                                        \
  }
  EVENKEEL_OPERATION(+)
  EVENKEEL_OPERATION(-)
  EVENKEEL_OPERATION(*)
  EVENKEEL_OPERATION(/)
  EVENKEEL_OPERATION(&)
  EVENKEEL_OPERATION(|)
  EVENKEEL_OPERATION(<<)
  EVENKEEL_OPERATION(>>)
#undef EVENKEEL_OPERATION

#define EVENKEEL_COMPARISON(op)                                                      \
  EVENKEEL_INLINE friend Mask operator op(const Joined& a, const Joined& b) {        \
    return {a.low op b.low, a.high op b.high};                                       \
  }                                                                                  \
  template <class S, class = std::enable_if_t<std::is_arithmetic_v<S>>>              \
  EVENKEEL_INLINE friend Mask operator op(const Joined& a, S b) {                    \
    return {a.low op static_cast<E>(b), a.high op static_cast<E>(b)};                \
  }
  EVENKEEL_COMPARISON(==)
  EVENKEEL_COMPARISON(!=)
  EVENKEEL_COMPARISON(<)
  EVENKEEL_COMPARISON(<=)
  EVENKEEL_COMPARISON(>)
  EVENKEEL_COMPARISON(>=)
#undef EVENKEEL_COMPARISON
};

template <class To, class From>
EVENKEEL_INLINE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  if constexpr (is_joined<To> && is_joined<From>) {
    return {bits_as<typename To::Half>(from.low), bits_as<typename To::Half>(from.high)};
  } else {
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
  }
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define EVENKEEL_HAS_SHUFFLE
#endif
#endif

template <int first, class V, size_t... i>
EVENKEEL_INLINE HalfOf<V> part_of(const V& v, std::index_sequence<i...>) {
#if defined(EVENKEEL_HAS_SHUFFLE)
  return __builtin_shufflevector(v, v, (first + i)...);
#else
  HalfOf<V> part;
  std::memcpy(&part, reinterpret_cast<const char*>(&v) + first * sizeof(v[0]), sizeof(part));
  return part;
#endif
}
template <class V>
EVENKEEL_INLINE HalfOf<V> low_half(const V& v) {
  if constexpr (is_joined<V>) {
    return v.low;
  } else {
    return part_of<0>(v, std::make_index_sequence<sizeof(V) / sizeof(v[0]) / 2>());
  }
}
template <class V>
EVENKEEL_INLINE HalfOf<V> high_half(const V& v) {
  if constexpr (is_joined<V>) {
    return v.high;
  } else {
    constexpr int count = sizeof(V) / sizeof(v[0]) / 2;
    return part_of<count>(v, std::make_index_sequence<count>());
  }
}

template <class V, size_t... i>
EVENKEEL_INLINE V joined_of(const HalfOf<V>& low, const HalfOf<V>& high, std::index_sequence<i...>) {
#if defined(EVENKEEL_HAS_SHUFFLE)
  return __builtin_shufflevector(low, high, i...);
#else
  const HalfOf<V> halves[2] = {low, high};
  return bits_as<V>(halves);
#endif
}
template <class V>
EVENKEEL_INLINE V join(const HalfOf<V>& low, const HalfOf<V>& high) {
  if constexpr (is_joined<V>) {
    return {low, high};
  } else {
    return joined_of<V>(low, high, std::make_index_sequence<sizeof(V) / sizeof(ElementOf<V>)>());
  }
}

// Every element as another type of number, as __builtin_convertvector.
template <class To, class From>
EVENKEEL_INLINE To convert(const From& from) {
  if constexpr (is_joined<To>) {
    return {convert<typename To::Half>(low_half(from)), convert<typename To::Half>(high_half(from))};
  } else if constexpr (is_joined<From>) {
    return join<To>(convert<HalfOf<To>>(from.low), convert<HalfOf<To>>(from.high));
  } else {
#if defined(__AVX2__)
    // one instruction, for which g++ 12 takes four
    using F = ElementOf<From>;
    if constexpr (sizeof(To) == 32 && sizeof(From) == 16) {
      const __m128i v = bits_as<__m128i>(from);
      if constexpr (std::is_same_v<F, uint8_t>) return bits_as<To>(_mm256_cvtepu8_epi16(v));
      if constexpr (std::is_same_v<F, int8_t>) return bits_as<To>(_mm256_cvtepi8_epi16(v));
      if constexpr (std::is_same_v<F, uint16_t>) return bits_as<To>(_mm256_cvtepu16_epi32(v));
      if constexpr (std::is_same_v<F, int16_t>) return bits_as<To>(_mm256_cvtepi16_epi32(v));
      if constexpr (std::is_same_v<F, int32_t>) return bits_as<To>(_mm256_cvtepi32_pd(v));
      if constexpr (std::is_same_v<F, float>) return bits_as<To>(_mm256_cvtps_pd(_mm_castsi128_ps(v)));
    }
#endif
    return __builtin_convertvector(from, To);
  }
}

// In each lane of the mask that is all ones the first, in each that is 0 the second.
template <class M, class V>
EVENKEEL_INLINE V choose(const M& mask, const V& yes, const V& no) {
  if constexpr (is_joined<V>) {
    return {choose(mask.low, yes.low, no.low), choose(mask.high, yes.high, no.high)};
  } else {
    return mask ? yes : no;
  }
}

// The bytes at p.
template <class V>
EVENKEEL_INLINE V load_bytes_of(const void* p) {
  if constexpr (is_joined<V>) {
    return {load_bytes_of<typename V::Half>(p),
            load_bytes_of<typename V::Half>(static_cast<const char*>(p) + sizeof(V) / 2)};
  } else {
    V v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
}
template <class V>
EVENKEEL_INLINE void store_bytes_of(void* p, const V& v) {
  if constexpr (is_joined<V>) {
    store_bytes_of(p, v.low);
    store_bytes_of(static_cast<char*>(p) + sizeof(V) / 2, v.high);
  } else {
    std::memcpy(p, &v, sizeof(v));
  }
}

}  // namespace evenkeel::EVENKEEL_ISA
