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
#include <new>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace evenkeel {
namespace EVENKEEL_ISA {

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

using Floats = Lanes<float>::vector;
using Ints = Lanes<float>::mask;
using Doubles = Lanes<double>::vector;
typedef uint32_t UnsignedInts __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(32)));
typedef float HalfFloats __attribute__((vector_size(32)));

// The type a dtype is computed in.
template <class T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};

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
  const __m512i chosen = _mm512_mask_mov_epi32(rounded, is_nan, bits_as<__m512i>((bits | 0x400000u) >> 16));
  return _mm512_maskz_cvtepi32_epi16(0xffff, chosen);
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

// Past the caches, for outputs larger than they are: an ordinary store first reads the line that it overwrites. p lies
// on a cache line.
inline void stream(float* p, Floats v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, bits_as<__m512>(v));
#elif defined(__x86_64__)
  __m128 quarters[4];
  std::memcpy(quarters, &v, sizeof(v));
  for (int i = 0; i < 4; ++i) _mm_stream_ps(p + 4 * i, quarters[i]);
#else
  store(p, v);
#endif
}
inline void stream(double* p, Doubles v) {
#if defined(__x86_64__)
  stream(reinterpret_cast<float*>(p), bits_as<Floats>(v));
#else
  store(p, v);
#endif
}
template <class T>
inline void stream(T* p, Floats v) {
#if defined(__x86_64__)
  T narrow[16];
  store(narrow, v);
  __m128i halves[2];
  std::memcpy(halves, narrow, sizeof(halves));
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), halves[0]);
  _mm_stream_si128(reinterpret_cast<__m128i*>(p) + 1, halves[1]);
#else
  store(p, v);
#endif
}

// After streams and before another thread may read.
inline void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Memory for one call, freed at its end, on a cache line: a vector across two lines takes two accesses. Not
// std::unique_ptr: its code would be shared between instruction sets.
template <class C>
class Buffer {
 public:
  explicit Buffer(int64_t count)
      : data_(count > 0 ? static_cast<C*>(::operator new(static_cast<size_t>(count) * sizeof(C), line)) : nullptr) {}
  ~Buffer() { ::operator delete(data_, line); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  C* data() const { return data_; }

 private:
  static constexpr std::align_val_t line{64};
  C* data_;
};

// The first `count` elements of a vector, and zeros behind them. Masks, where there are any: a call of memcpy takes
// longer than a short row.
template <class V, class T>
inline V load_some(const T* p, int count) {
#if defined(__AVX512F__)
  const auto some = static_cast<__mmask16>((1u << count) - 1);
  if constexpr (std::is_same_v<T, float>) return bits_as<V>(_mm512_maskz_loadu_ps(some, p));
  if constexpr (std::is_same_v<T, double>) return bits_as<V>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(some), p));
  if constexpr (std::is_same_v<T, bf16>) return from_bf16(_mm256_maskz_loadu_epi16(some, p));
  if constexpr (std::is_same_v<T, f16>) return from_f16(_mm256_maskz_loadu_epi16(some, p));
#else
  T buffer[sizeof(V) / sizeof(typename Compute<T>::type)] = {};
  std::memcpy(buffer, p, count * sizeof(T));
  return load(buffer);
#endif
}
template <class V, class T>
inline void store_some(T* p, V v, int count) {
#if defined(__AVX512F__)
  const auto some = static_cast<__mmask16>((1u << count) - 1);
  if constexpr (std::is_same_v<T, float>) _mm512_mask_storeu_ps(p, some, bits_as<__m512>(v));
  if constexpr (std::is_same_v<T, double>) _mm512_mask_storeu_pd(p, static_cast<__mmask8>(some), bits_as<__m512d>(v));
  if constexpr (std::is_same_v<T, bf16>) _mm256_mask_storeu_epi16(p, some, to_bf16(v));
  if constexpr (std::is_same_v<T, f16>) _mm256_mask_storeu_epi16(p, some, to_f16(v));
#else
  T buffer[sizeof(V) / sizeof(typename Compute<T>::type)];
  store(buffer, v);
  std::memcpy(p, buffer, count * sizeof(T));
#endif
}

// One position in a row: a whole vector, or the last elements that do not fill one.
template <class C>
struct Whole {
  using V = typename Lanes<C>::vector;
  int64_t i;
  template <class T>
  V load(const T* p) const {
    return EVENKEEL_ISA::load(p + i);
  }
  template <class T>
  void store(T* p, V v) const {
    EVENKEEL_ISA::store(p + i, v);
  }
  // of what lies in the order of the lanes
  V load_in_order(const C* p) const { return load(p); }
  void store_in_order(C* p, V v) const { store(p, v); }
  V keep(V v) const { return v; }
};

// A whole vector whose stores go past the caches.
template <class C>
struct Streamed : Whole<C> {
  using V = typename Lanes<C>::vector;
  template <class T>
  void store(T* p, V v) const {
    EVENKEEL_ISA::stream(p + this->i, v);
  }
};

// The first elements of a vector.
template <class C>
struct Rest {
  using V = typename Lanes<C>::vector;
  static constexpr int width = Lanes<C>::width;
  int64_t i;
  int count;
  template <class T>
  V load(const T* p) const {
    return load_some<V>(p + i, count);
  }
  template <class T>
  void store(T* p, V v) const {
    store_some(p + i, v, count);
  }
  V keep(V v) const {  // 0 in the lanes past the end
    using Mask = typename Lanes<C>::mask;
    Mask number;
    for (int l = 0; l < width; ++l) number[l] = l;
    return bits_as<V>(bits_as<Mask>(v) & (number < count));
  }
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

// Calls body(position) along a row of n elements. streamed: stores go past the caches, and what is stored to reaches a
// cache line after `head` elements.
template <class C, class Body>
inline void for_each_position(int64_t n, const Body& body, bool streamed = false, int64_t head = 0) {
  constexpr int width = Lanes<C>::width;
  int64_t i = 0;
  if (streamed) {
    for (head = head < n ? head : n; i < head;) {
      const int count = static_cast<int>(head - i < width ? head - i : width);
      body(Rest<C>{i, count});
      i += count;
    }
    for (; i + width <= n; i += width) body(Streamed<C>{{i}});
  } else {
    for (; i + width <= n; i += width) body(Whole<C>{i});
  }
  if (i < n) body(Rest<C>{i, static_cast<int>(n - i)});
}

inline Doubles as_doubles(HalfFloats v) {
#if defined(__AVX512F__)
  return bits_as<Doubles>(_mm512_maskz_cvtps_pd(0xff, bits_as<__m256>(v)));
#else
  return __builtin_convertvector(v, Doubles);
#endif
}
// Both halves of a vector in double.
inline void widen(Floats v, Doubles (&out)[2]) {
#if defined(__AVX512F__)
  const __m512 whole = bits_as<__m512>(v);  // a copy of the halves would go through memory
  out[0] = bits_as<Doubles>(_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, whole, 0)));
  out[1] = bits_as<Doubles>(_mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, whole, 1)));
#else
  HalfFloats halves[2];
  std::memcpy(halves, &v, sizeof(v));
  out[0] = as_doubles(halves[0]);
  out[1] = as_doubles(halves[1]);
#endif
}
inline Doubles as_doubles(Floats v) {
  Doubles halves[2];
  widen(v, halves);
  return halves[0] + halves[1];
}
inline Doubles as_doubles(Doubles v) { return v; }

// Eight doubles rounded to the arithmetic type.
template <class C>
struct Eight;
template <>
struct Eight<float> {
  using vector = HalfFloats;
  static vector from(Doubles v) {
#if defined(__AVX512F__)
    return bits_as<HalfFloats>(_mm512_maskz_cvtpd_ps(0xff, bits_as<__m512d>(v)));
#else
    return __builtin_convertvector(v, HalfFloats);
#endif
  }
};
template <>
struct Eight<double> {
  using vector = Doubles;
  static vector from(Doubles v) { return v; }
};

// Both halves rounded.
inline Floats as_floats(const Doubles (&v)[2]) {
#if defined(__AVX512F__)
  const __m512 low = _mm512_castps256_ps512(bits_as<__m256>(Eight<float>::from(v[0])));
  return bits_as<Floats>(_mm512_maskz_insertf32x8(0xffff, low, bits_as<__m256>(Eight<float>::from(v[1])), 1));
#else
  const HalfFloats halves[2] = {Eight<float>::from(v[0]), Eight<float>::from(v[1])};
  return bits_as<Floats>(halves);
#endif
}

inline Doubles choose(Lanes<double>::mask condition, Doubles yes, Doubles no) {
  using Mask = Lanes<double>::mask;
  return bits_as<Doubles>((bits_as<Mask>(yes) & condition) | (bits_as<Mask>(no) & ~condition));
}

inline bool any(Lanes<double>::mask condition) {
#if defined(__AVX512F__)
  return _mm512_movepi64_mask(bits_as<__m512i>(condition)) != 0;
#else
  int64_t some = 0;
  for (int i = 0; i < 8; ++i) some |= condition[i];
  return some != 0;
#endif
}

inline Doubles root_of(Doubles v) {
#if defined(__AVX512F__)
  return bits_as<Doubles>(_mm512_maskz_sqrt_pd(0xff, bits_as<__m512d>(v)));
#else
  Doubles root;
  for (int i = 0; i < 8; ++i) root[i] = __builtin_sqrt(v[i]);
  return root;
#endif
}

// The lower half of a vector plus the upper: g++ moves a copy of the halves through memory.
inline HalfFloats fold(Floats v) {
#if defined(__AVX512F__)
  const __m512 whole = bits_as<__m512>(v);
  return bits_as<HalfFloats>(_mm512_maskz_extractf32x8_ps(0xff, whole, 0)) +
         bits_as<HalfFloats>(_mm512_maskz_extractf32x8_ps(0xff, whole, 1));
#else
  HalfFloats halves[2];
  std::memcpy(halves, &v, sizeof(v));
  return halves[0] + halves[1];
#endif
}
typedef double HalfDoubles __attribute__((vector_size(32)));
inline HalfDoubles fold(Doubles v) {
#if defined(__AVX512F__)
  const __m512d whole = bits_as<__m512d>(v);
  return bits_as<HalfDoubles>(_mm512_maskz_extractf64x4_pd(0xf, whole, 0)) +
         bits_as<HalfDoubles>(_mm512_maskz_extractf64x4_pd(0xf, whole, 1));
#else
  HalfDoubles halves[2];
  std::memcpy(halves, &v, sizeof(v));
  return halves[0] + halves[1];
#endif
}

inline double sum_of_lanes(Doubles v) {
  const HalfDoubles h = fold(v);
  return (h[0] + h[2]) + (h[1] + h[3]);
}
inline float sum_of_lanes(Floats v) {
  const HalfFloats h = fold(v);
  return ((h[0] + h[4]) + (h[2] + h[6])) + ((h[1] + h[5]) + (h[3] + h[7]));
}

// Sums K terms along a row: term(position, out) gives K vectors. Partial sums are C in chains of 16 additions and
// double across them, so that the error does not grow with the length of the row. Two chains at a time hide how long an
// addition takes; one needs half the registers.
template <class C, int chains = 2, int K, class Term>
inline void sum_terms(int64_t n, double (&sums)[K], const Term& term) {
  using V = typename Lanes<C>::vector;
  constexpr int64_t width = Lanes<C>::width, block = 16 * chains * width;
  Doubles totals[K] = {};
  int64_t i = 0;
  while (i < n) {
    V partial[chains][K] = {}, out[K];
    const int64_t end = i + block < n ? i + block : n;
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
    if (i < end) {
      add(Rest<C>{i, static_cast<int>(end - i)}, chains - 1);
      i = end;
    }
    for (int k = 0; k < K; ++k) {
      totals[k] += chains > 1 ? as_doubles(partial[0][k] + partial[chains - 1][k]) : as_doubles(partial[0][k]);
    }
  }
  for (int k = 0; k < K; ++k) sums[k] = sum_of_lanes(totals[k]);
}

inline float to_float(float v) { return v; }
inline float to_float(bf16 v) { return bits_as<float>(static_cast<uint32_t>(v.bits) << 16); }
inline float to_float(f16 v) {
  f16 buffer[16] = {v};
  return load(buffer)[0];
}
inline double to_double(double v) { return v; }
template <class T>
inline double to_double(T v) {
  return to_float(v);
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
  for (int64_t i = 0; i < n; i += 16) {
    const int count = static_cast<int>(n - i < 16 ? n - i : 16);
    Floats v = {};
    for (int l = 0; l < count; ++l) v[l] = static_cast<float>(source[i + l]);
    Rest<float>{i, count}.store(row, v);
  }
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
