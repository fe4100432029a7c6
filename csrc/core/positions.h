// Walking along a row: a vector at a time, and the elements that do not fill one; sums in a fixed order.
#pragma once

#include "core/doubles.h"
#include "core/scratch.h"

namespace evenkeel::EVENKEEL_ISA {

// Memory for one call. Aligned: a vector across two cache lines takes two accesses.
template <class C>
class Buffer {
 public:
  explicit Buffer(int64_t count) : memory_(count * static_cast<int64_t>(sizeof(C))) {}
  C* data() const { return static_cast<C*>(memory_.data()); }

 private:
  const ScratchMemory memory_;
};

#if !defined(__AVX512F__)
// The first bytes of 16, an even number, and zeros behind them. From and to registers alone: what is written to memory
// in pieces and then read as one has to wait for all of them.
EVENKEEL_INLINE HalfShorts load_below(const void* p, int bytes) {
  const auto read = [&](auto piece, int at) {
    std::memcpy(&piece, static_cast<const char*>(p) + at, sizeof(piece));
    return static_cast<uint64_t>(piece);
  };
  uint64_t low = 0, high = 0;  // the last piece overlaps the first
  if (bytes >= 8) {
    low = read(uint64_t{}, 0);
    high = read(uint64_t{}, bytes - 8) >> 4 * (16 - bytes) >> 4 * (16 - bytes);  // by 64 where 8 are all
  } else if (bytes >= 4) {
    low = read(uint32_t{}, 0) | read(uint32_t{}, bytes - 4) << 8 * (bytes - 4);
  } else if (bytes >= 2) {
    low = read(uint16_t{}, 0);
  }
  return bits_as<HalfShorts>(VectorOf<uint64_t, 16>{low, high});
}
template <class V>
EVENKEEL_INLINE void store_below(void* p, const V& v, int bytes) {
  char* to = static_cast<char*>(p);
  if constexpr (sizeof(V) > 16) {
    constexpr int half = sizeof(V) / 2;
    if (bytes < half) return store_below(to, low_half(v), bytes);
    store_bytes_of(to, low_half(v));
    store_below(to + half, high_half(v), bytes - half);
  } else if (bytes == sizeof(V)) {
    store_bytes_of(to, v);
  } else {
    const VectorOf<uint64_t, 16> words = bits_as<VectorOf<uint64_t, 16>>(v);
    uint64_t word = words[0];
    const auto write = [&](auto piece) {
      if (!(bytes & sizeof(piece))) return;
      piece = static_cast<decltype(piece)>(word);
      std::memcpy(to, &piece, sizeof(piece));
      to += sizeof(piece);
      word = sizeof(piece) == 8 ? words[1] : word >> 8 * (sizeof(piece) % 8);
    };
    write(uint64_t{});
    write(uint32_t{});
    write(uint16_t{});
  }
}
#endif

// The first `count` elements of a vector, and zeros behind them. Masks, where there are any.
template <class V, class T>
EVENKEEL_INLINE V load_some(const T* p, int count) {
#if defined(__AVX512F__)
  const auto some = static_cast<__mmask16>((1u << count) - 1);
  if constexpr (std::is_same_v<T, float>) return bits_as<V>(_mm512_maskz_loadu_ps(some, p));
  if constexpr (std::is_same_v<T, double>) return bits_as<V>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(some), p));
  if constexpr (std::is_same_v<T, bf16>) return from_bf16(_mm256_maskz_loadu_epi16(some, p));
  if constexpr (std::is_same_v<T, f16>) return from_f16(_mm256_maskz_loadu_epi16(some, p));
#else
  if constexpr (sizeof(T) == 2) {
    if (count < 8) return from_16_bits(p, load_below(p, 2 * count), HalfShorts{});
    return from_16_bits(p, load_bytes_of<HalfShorts>(p), load_below(p + 8, 2 * count - 16));
  } else {
#if defined(__AVX2__)
    constexpr int half = Lanes<T>::width / 2;
    const LaneMask<T> some = lanes_below<T>(count);
    const auto low = bits_as<__m256i>(some.low), high = bits_as<__m256i>(some.high);
    if constexpr (sizeof(T) == 4) {
      return {bits_as<HalfOf<V>>(_mm256_maskload_ps(p, low)), bits_as<HalfOf<V>>(_mm256_maskload_ps(p + half, high))};
    } else {
      return {bits_as<HalfOf<V>>(_mm256_maskload_pd(p, low)), bits_as<HalfOf<V>>(_mm256_maskload_pd(p + half, high))};
    }
#else
    T buffer[Lanes<T>::width] = {};
    for (int i = 0; i < count; ++i) buffer[i] = p[i];
    return load(buffer);
#endif
  }
#endif
}
template <class V, class T>
EVENKEEL_INLINE void store_some(T* p, V v, int count) {
#if defined(__AVX512F__)
  const auto some = static_cast<__mmask16>((1u << count) - 1);
  if constexpr (std::is_same_v<T, float>) _mm512_mask_storeu_ps(p, some, bits_as<__m512>(v));
  if constexpr (std::is_same_v<T, double>) _mm512_mask_storeu_pd(p, static_cast<__mmask8>(some), bits_as<__m512d>(v));
  if constexpr (std::is_same_v<T, bf16>) _mm256_mask_storeu_epi16(p, some, to_bf16(v));
  if constexpr (std::is_same_v<T, f16>) _mm256_mask_storeu_epi16(p, some, to_f16(v));
#else
  const int bytes = count * static_cast<int>(sizeof(T));
  if constexpr (std::is_same_v<T, bf16>) {
    store_below(p, to_bf16(v), bytes);
  } else if constexpr (std::is_same_v<T, f16>) {
    store_below(p, to_f16(v), bytes);
  } else {
    store_below(p, v, bytes);
  }
#endif
}

// One position in a row: a whole vector, or the last elements that do not fill one.
template <class C>
struct Whole {
  using V = Vector<C>;
  int64_t i;
  template <class T>
  EVENKEEL_INLINE V load(const T* p) const {
    return EVENKEEL_ISA::load(p + i);
  }
  template <class T>
  EVENKEEL_INLINE void store(T* p, V v) const {
    EVENKEEL_ISA::store(p + i, v);
  }
  // of what lies in the order of the lanes
  EVENKEEL_INLINE V load_in_order(const C* p) const { return load(p); }
  EVENKEEL_INLINE void store_in_order(C* p, V v) const { store(p, v); }
  EVENKEEL_INLINE V keep(V v) const { return v; }
};

// A whole vector whose stores go past the caches.
template <class C>
struct Streamed : Whole<C> {
  using V = Vector<C>;
  template <class T>
  EVENKEEL_INLINE void store(T* p, V v) const {
    EVENKEEL_ISA::stream(p + this->i, v);
  }
};

// The first elements of a vector.
template <class C>
struct Rest {
  using V = Vector<C>;
  int64_t i;
  int count;
  template <class T>
  EVENKEEL_INLINE V load(const T* p) const {
    return load_some<V>(p + i, count);
  }
  template <class T>
  EVENKEEL_INLINE void store(T* p, V v) const {
    store_some(p + i, v, count);
  }
  EVENKEEL_INLINE V keep(V v) const { return keep_lanes<C>(v, lanes_below<C>(count)); }  // 0 in the lanes past the end
};

// A store that does not go past the caches, wherever the position's own do.
template <class C, class T, class V>
inline void store_near(const Whole<C>& at, T* p, const V& v) {
  at.store(p, v);
}
template <class C, class T, class V>
inline void store_near(const Rest<C>& at, T* p, const V& v) {
  at.store(p, v);
}

// Calls body(position) along a row of n elements, the first `head` of which are walked by themselves. streamed: stores
// go past the caches, and what is stored to reaches a cache line after the head.
template <class C, class Body>
inline void for_each_position(int64_t n, const Body& body, bool streamed = false, int64_t head = 0) {
  constexpr int width = Lanes<C>::width;
  int64_t i = 0;
  for (head = head < n ? head : n; i < head;) {
    const int count = static_cast<int>(head - i < width ? head - i : width);
    body(Rest<C>{i, count});
    i += count;
  }
  if (streamed) {
    for (; i + width <= n; i += width) body(Streamed<C>{{i}});
  } else {
    for (; i + width <= n; i += width) body(Whole<C>{i});
  }
  if (i < n) body(Rest<C>{i, static_cast<int>(n - i)});
}

// Adds K terms from i to end along a row, at most 16 additions a lane: term(position, out) gives K vectors. Two chains at
// a time hide how long an addition takes; one needs half the registers.
template <class C, int chains, int K, class Term>
EVENKEEL_INLINE void add_block(int64_t i, int64_t end, Vector<C> (&sums)[K], const Term& term) {
  using V = Vector<C>;
  constexpr int64_t width = Lanes<C>::width;
  V partial[chains][K] = {}, out[K];
  const auto add = [&](const auto& at, int chain) {
    term(at, out);
    for (int k = 0; k < K; ++k) partial[chain][k] += out[k];
  };
  for (; i + chains * width <= end; i += chains * width) {
    for (int chain = 0; chain < chains; ++chain) add(Whole<C>{i + chain * width}, chain);
  }
  if (chains > 1 && i + width <= end) {
    add(Whole<C>{i}, 0);
    i += width;
  }
  if (i < end) add(Rest<C>{i, static_cast<int>(end - i)}, chains - 1);
  for (int k = 0; k < K; ++k) sums[k] = chains > 1 ? partial[0][k] + partial[chains - 1][k] : partial[0][k];
}

// Adds K terms along a row. Partial sums are C in chains of 16 additions and double across them, so that the error does
// not grow with the length of the row.
template <class C, int chains = 2, int K, class Term>
inline void add_terms(int64_t n, Doubles (&totals)[K], const Term& term) {
  constexpr int64_t block = 16 * chains * Lanes<C>::width;
  for (int64_t i = 0; i < n; i += block) {
    Vector<C> sums[K];
    add_block<C, chains>(i, i + block < n ? i + block : n, sums, term);
    for (int k = 0; k < K; ++k) totals[k] += as_doubles(sums[k]);
  }
}
template <class C, int chains = 2, int K, class Term>
inline void sum_terms(int64_t n, double (&sums)[K], const Term& term) {
  Doubles totals[K] = {};
  add_terms<C, chains>(n, totals, term);
  for (int k = 0; k < K; ++k) sums[k] = sum_of_lanes(totals[k]);
}

// Rows of 16-bit floats are widened into scratch; rows of float and double are used where they are.
inline const float* widen(const float* row, float*, int64_t) { return row; }
inline const double* widen(const double* row, double*, int64_t) { return row; }
template <class T>
inline const float* widen(const T* row, float* scratch, int64_t n) {
  for_each_position<float>(n, [&](auto at) { at.store(scratch, at.load(row)); });
  return scratch;
}

// Rounds doubles to a row of T; the 16-bit formats by way of float.
inline void narrow(double* row, const double* source, int64_t n) { std::memcpy(row, source, n * sizeof(double)); }
template <class T>
inline void narrow(T* row, const double* source, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Doubles parts[2] = {load(source + i), load(source + i + 8)};
    Whole<float>{i}.store(row, as_floats(parts));
  }
  if (i == n) return;
  float last[16] = {};
  for (int l = 0; i + l < n; ++l) last[l] = static_cast<float>(source[i + l]);
  Rest<float>{i, static_cast<int>(n - i)}.store(row, load(last));
}

}  // namespace evenkeel::EVENKEEL_ISA
