// Thirty-two bfloat16 at a time, as the sixteen at even places and the sixteen at odd ones: a shift and a mask widen
// them, a shift and a merge put them together again; sixteen in a row take twice the instructions.
// Sums then add even and odd places apart; what belongs to a row element by element is not touched by it.
#pragma once

#include "core/positions.h"

namespace evenkeel::EVENKEEL_ISA {

struct Pair {
  Floats even, odd;
  Pair& operator+=(const Pair& other) {
    even += other.even;
    odd += other.odd;
    return *this;
  }
};
EVENKEEL_INLINE Pair operator+(const Pair& a, const Pair& b) { return {a.even + b.even, a.odd + b.odd}; }
EVENKEEL_INLINE Pair operator-(const Pair& a, const Pair& b) { return {a.even - b.even, a.odd - b.odd}; }
EVENKEEL_INLINE Pair operator*(const Pair& a, const Pair& b) { return {a.even * b.even, a.odd * b.odd}; }
EVENKEEL_INLINE Pair operator-(const Pair& a, float b) { return {a.even - b, a.odd - b}; }
EVENKEEL_INLINE Pair operator*(const Pair& a, float b) { return {a.even * b, a.odd * b}; }

EVENKEEL_INLINE Doubles as_doubles(const Pair& v) { return as_doubles(v.even + v.odd); }

// The tag of rows read in pairs, as float and double are of rows read in vectors of these.
struct pair {};
template <>
struct Lanes<pair> {
  static constexpr int width = 32;
  using vector = Pair;
};

inline constexpr int64_t padded_pairs(int64_t n) { return (n + 31) / 32 * 32; }

// How the sums over a row of T read it: all instruction sets alike, for the bits depend on it.
template <class T>
struct Summed {
  using lanes = Opmath<T>;
};
template <>
struct Summed<bf16> {
  using lanes = pair;
};
// How a row of T is written. Where a vector holds 32, parameters are taken apart as they are loaded; elsewhere that takes
// longer than it saves, and they have to lie in the order of pairs.
template <class T>
struct Written {
  using lanes = Opmath<T>;
};
#if defined(__AVX512F__)
template <>
struct Written<bf16> {
  using lanes = pair;
};
#endif
template <class T>
inline constexpr bool is_written_in_order = std::is_same_v<T, bf16> && !std::is_same_v<typename Written<T>::lanes, pair>;

EVENKEEL_INLINE Pair widen_pair(UnsignedInts both) {
  return {bits_as<Floats>(both << 16), bits_as<Floats>(both & 0xffff0000u)};
}

// The bits of a bfloat16 in the upper half.
EVENKEEL_INLINE UnsignedInts round_up_there(Floats v) {
  const UnsignedInts bits = bits_as<UnsignedInts>(v);
#if defined(__AVX512F__)
  const __mmask16 odd = _mm512_test_epi32_mask(bits_as<__m512i>(bits), _mm512_set1_epi32(0x10000));
  const __m512i below = bits_as<__m512i>(bits + 0x7fffu);
  return bits_as<UnsignedInts>(_mm512_mask_add_epi32(below, odd, below, _mm512_set1_epi32(1)));
#else
  return bits + 0x7fffu + ((bits >> 16) & 1u);
#endif
}

#if defined(__AVX512F__)
EVENKEEL_INLINE __mmask16 first_lanes(int count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1);
}

EVENKEEL_INLINE Pair separate(__m512 low, __m512 high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return {bits_as<Floats>(_mm512_permutex2var_ps(low, even, high)),
          bits_as<Floats>(_mm512_permutex2var_ps(low, odd, high))};
}

EVENKEEL_INLINE __m512i merge(const Pair& v) {
  UnsignedInts even = round_up_there(v.even), odd = round_up_there(v.odd);
  if (__builtin_expect(_mm512_cmp_ps_mask(bits_as<__m512>(v.even), bits_as<__m512>(v.odd), _CMP_UNORD_Q), 0)) {
    even = choose(v.even != v.even, bits_as<UnsignedInts>(v.even) | 0x400000u, even);
    odd = choose(v.odd != v.odd, bits_as<UnsignedInts>(v.odd) | 0x400000u, odd);
  }
  return bits_as<__m512i>((even >> 16) | (odd & 0xffff0000u));
}
#else
EVENKEEL_INLINE UnsignedInts merge(const Pair& v) {
  UnsignedInts even = round_up_there(v.even), odd = round_up_there(v.odd);
  if (__builtin_expect(any_nan(v.even) || any_nan(v.odd), 0)) {
    even = choose(v.even != v.even, bits_as<UnsignedInts>(v.even) | 0x400000u, even);
    odd = choose(v.odd != v.odd, bits_as<UnsignedInts>(v.odd) | 0x400000u, odd);
  }
  return (even >> 16) | (odd & 0xffff0000u);
}

// The first bytes of a vector, and zeros behind them.
template <class V>
EVENKEEL_INLINE V load_start(const void* p, int bytes) {
  if constexpr (sizeof(V) == 16) {
    return bits_as<V>(load_below(p, bytes < 16 ? bytes : 16));
  } else {
    constexpr int half = sizeof(V) / 2;
    return join<V>(load_start<HalfOf<V>>(p, bytes), load_start<HalfOf<V>>(static_cast<const char*>(p) + half, bytes - half));
  }
}
#endif

// Even and odd places in turn.
EVENKEEL_INLINE void store_joined(float* p, const Pair& v) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  _mm512_storeu_ps(p, _mm512_permutex2var_ps(bits_as<__m512>(v.even), low, bits_as<__m512>(v.odd)));
  _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(bits_as<__m512>(v.even), high, bits_as<__m512>(v.odd)));
#else
  for (int i = 0; i < 16; ++i) {
    p[2 * i] = v.even[i];
    p[2 * i + 1] = v.odd[i];
  }
#endif
}

template <>
struct Whole<pair> {
  using V = Pair;
  int64_t i;
  EVENKEEL_INLINE V load(const bf16* p) const {
    return widen_pair(load_bytes_of<UnsignedInts>(p + i));
  }
#if defined(__AVX512F__)
  EVENKEEL_INLINE V load(const float* p) const { return separate(_mm512_loadu_ps(p + i), _mm512_loadu_ps(p + i + 16)); }
  EVENKEEL_INLINE void store(bf16* p, const V& v) const { _mm512_storeu_si512(p + i, merge(v)); }
#else
  EVENKEEL_INLINE V load(const float* p) const { return load_in_order(p); }
  EVENKEEL_INLINE void store(bf16* p, const V& v) const { store_bytes_of(p + i, merge(v)); }
#endif
  EVENKEEL_INLINE V load_in_order(const float* p) const {
    return {EVENKEEL_ISA::load(p + i), EVENKEEL_ISA::load(p + i + 16)};
  }
  EVENKEEL_INLINE void store_in_order(float* p, const V& v) const {
    EVENKEEL_ISA::store(p + i, v.even);
    EVENKEEL_ISA::store(p + i + 16, v.odd);
  }
  EVENKEEL_INLINE V keep(const V& v) const { return v; }
};

template <>
struct Streamed<pair> : Whole<pair> {
  EVENKEEL_INLINE void store(bf16* p, const V& v) const {
    const auto both = merge(v);
    stream_bytes<sizeof(both)>(p + i, &both);
  }
};

template <>
struct Rest<pair> {
  using V = Pair;
  int64_t i;
  int count;
  EVENKEEL_INLINE V load(const bf16* p) const {
#if defined(__AVX512F__)
    return widen_pair(bits_as<UnsignedInts>(_mm512_maskz_loadu_epi16((1u << count) - 1, p + i)));
#else
    return widen_pair(load_start<UnsignedInts>(p + i, 2 * count));
#endif
  }
#if defined(__AVX512F__)
  EVENKEEL_INLINE V load(const float* p) const {
    return separate(_mm512_maskz_loadu_ps(first_lanes(count), p + i),
                    _mm512_maskz_loadu_ps(first_lanes(count - 16), p + i + 16));
  }
  EVENKEEL_INLINE void store(bf16* p, const V& v) const {
    _mm512_mask_storeu_epi16(p + i, (1u << count) - 1, merge(v));
  }
#else
  EVENKEEL_INLINE V load(const float* p) const { return Whole<pair>{i}.load_in_order(p); }  // padded
  EVENKEEL_INLINE void store(bf16* p, const V& v) const { store_below(p + i, merge(v), 2 * count); }
#endif
  EVENKEEL_INLINE V keep(const V& v) const {
    const Rest<float> even{0, (count + 1) / 2}, odd{0, count / 2};
    return {even.keep(v.even), odd.keep(v.odd)};
  }
};

template <class L>
inline constexpr bool is_in_order = !std::is_same_v<L, pair>;

// Parameters as rows are read or written: where they lie, or even and odd places of every 32 apart.
template <class L, class C>
const C* in_order(const C* parameters, C* scratch, int64_t n) {
  if constexpr (std::is_same_v<L, pair>) {
    if (!parameters) return nullptr;
    const auto take = [&](int64_t start, int64_t count) {
      for (int64_t i = 0; i < count; ++i) scratch[start + i % 2 * 16 + i / 2] = parameters[start + i];
    };
    const int64_t whole = n / 32 * 32;
    for (int64_t start = 0; start < whole; start += 32) {
      if constexpr (register_bytes == 64 && std::is_same_v<C, float>) {
        Whole<pair>{start}.store_in_order(scratch, Whole<pair>{start}.load(parameters));
      } else {
        take(start, 32);
      }
    }
    if (whole == n) return scratch;
    std::memset(scratch + whole, 0, 32 * sizeof(C));
    take(whole, n - whole);
    return scratch;
  }
  return parameters;
}

}  // namespace evenkeel::EVENKEEL_ISA
