// Statistics of one row, shared by the forward and the backward of the row pattern.
//
// Mean and variance come from the differences from a shift and their squares, in one pass. The shift is the mean of the
// first vector of elements, which is as good as the row's mean where it lies within half a deviation of it; where it
// does not, a second pass (the row is in cache) takes the mean as shift. So a mean of 1e4 with a spread of 0.01 costs
// no accuracy, and a constant row gives exactly 0. The mean is kept in two parts, for where its rounding matters
// against the spread. A row whose scale leaves the range in which float squares are safe is done again in double:
// float's whole range fits there.
#pragma once

#include <cmath>
#include <type_traits>

#include "rows_kernels.h"
#include "simd.h"

#define EVENKEEL_JOIN_(a, b) a##b
#define EVENKEEL_JOIN(a, b) EVENKEEL_JOIN_(a, b)

namespace evenkeel {
namespace EVENKEEL_ISA {

void forward_rows(const RowsForward& a, int64_t begin, int64_t end);
void backward_tasks(const RowsBackward& a, int64_t begin, int64_t end);

namespace {

template <class C>
struct Statistics {
  C mean, mean_rest, reciprocal, bend;
};

inline int64_t row_offset(const RowLayout& layout, int64_t row) {
  int64_t offset = 0;
  for (int axis = layout.axes - 1; axis > 0; --axis) {
    offset += row % layout.sizes[axis] * layout.strides[axis];
    row /= layout.sizes[axis];
  }
  return layout.axes ? offset + row * layout.strides[0] : 0;
}

// Scales between which float squares neither overflow nor lose bits to underflow (with or without flush-to-zero).
inline bool in_float_range(double reciprocal) { return reciprocal > 0x1p-60 && reciprocal < 0x1p48; }
inline bool safe(const Statistics<float>& s) { return in_float_range(s.reciprocal); }
inline bool safe(const Statistics<double>&) { return true; }

// The mean of the first vector, exact where its elements are equal; of a shorter row the first element.
inline float mean_of_lanes(Floats v) {
  typedef float Quarter __attribute__((vector_size(16)));
  HalfFloats halves[2];
  std::memcpy(halves, &v, sizeof(v));
  const HalfFloats half = halves[0] + halves[1];
  Quarter quarters[2];
  std::memcpy(quarters, &half, sizeof(half));
  const Quarter q = quarters[0] + quarters[1];
  return ((q[0] + q[2]) + (q[1] + q[3])) * (1.0f / Lanes<float>::width);
}
inline double mean_of_lanes(Doubles v) { return sum_of_lanes(v) * (1.0 / Lanes<double>::width); }

template <class C, class T>
C first_mean(const T* x, int64_t n) {
  return n < Lanes<C>::width ? static_cast<C>(to_double(x[0])) : mean_of_lanes(load(x));
}

template <class C, class T>
Statistics<C> measure(const T* x, const RowsSpec& spec) {
  using V = typename Lanes<C>::vector;
  const double n = spec.count();
  Statistics<C> s{};
  double square = 0;
  if (spec.center()) {
    double mean = 0, sums[2];
    const auto take_moments = [&](C shift) {
      sum_terms<C>(spec.features, sums, [&](auto at, V(&out)[2]) {
        const V d = at.keep(at.load(x) - shift);
        out[0] = d;
        out[1] = d * d;
      });
      const double offset = sums[0] / n;
      mean = static_cast<double>(shift) + offset;
      s.mean = static_cast<C>(mean);
      s.mean_rest = static_cast<C>((static_cast<double>(shift) - static_cast<double>(s.mean)) + offset);
      square = sums[1] / n - offset * offset;
      return 4 * offset * offset <= square;
    };
    if (!take_moments(first_mean<C>(x, spec.features))) take_moments(static_cast<C>(mean));
    if (square < 0) square = 0;
  } else {
    double sum[1];
    sum_terms<C>(spec.features, sum, [&](auto at, V(&out)[1]) {
      const V v = at.load(x);
      out[0] = v * v;
    });
    square = sum[0] / n;
  }
  if (spec.eps_mode == EpsMode::inside) {
    s.reciprocal = static_cast<C>(1.0 / std::sqrt(square + spec.eps));
    s.bend = 1;
  } else if (spec.eps_mode == EpsMode::outside) {
    const double root = std::sqrt(square);
    s.reciprocal = static_cast<C>(1.0 / (root + spec.eps));
    s.bend = static_cast<C>(root == 0 ? 0.0 : (root + spec.eps) / root);
  } else {
    const double root = std::sqrt(square);
    s.reciprocal = static_cast<C>(1.0 / (root < spec.eps ? spec.eps : root));
    s.bend = root < spec.eps ? 0 : 1;
  }
  return s;
}

template <class C>
void save(const Statistics<C>& s, const RowsSpec& spec, C* saved) {
  if (spec.center()) {
    *saved++ = s.mean;
    *saved++ = s.mean_rest;
  }
  *saved++ = s.reciprocal;
  if (spec.eps_mode != EpsMode::inside) *saved = s.bend;
}

template <class C>
Statistics<C> restore(const RowsSpec& spec, const C* saved) {
  Statistics<C> s{0, 0, 0, 1};
  if (spec.center()) {
    s.mean = *saved++;
    s.mean_rest = *saved++;
  }
  s.reciprocal = *saved++;
  if (spec.eps_mode != EpsMode::inside) s.bend = *saved;
  return s;
}

// What is subtracted: nothing, the mean, or both its parts.
// done: what is given is the normalized row.
enum class Centring { none, rounded, both, done };

// The second part is left out where it is below 2^-27 of the scale: a thirtieth of an ulp of the largest values.
template <class C>
Centring centring_of(const RowsSpec& spec, const Statistics<C>& s) {
  if (!spec.center()) return Centring::none;
  const C part = s.mean_rest * s.reciprocal;
  const bool negligible = sizeof(C) == sizeof(float) && part < C(0x1p-27) && part > C(-0x1p-27);
  return negligible ? Centring::rounded : Centring::both;
}

// Calls body with the row's centring as a compile-time constant.
template <class C, class Body>
inline void with_centring(const RowsSpec& spec, const Statistics<C>& s, const Body& body) {
  switch (centring_of(spec, s)) {
    case Centring::none: return body(std::integral_constant<Centring, Centring::none>{});
    case Centring::rounded: return body(std::integral_constant<Centring, Centring::rounded>{});
    default: return body(std::integral_constant<Centring, Centring::both>{});
  }
}

template <Centring centring, class C, class T, class At>
inline typename Lanes<C>::vector centred(const At& at, const T* x, const Statistics<C>& s) {
  if constexpr (centring == Centring::none || centring == Centring::done) return at.load(x);
  if constexpr (centring == Centring::rounded) return at.load(x) - s.mean;
  return (at.load(x) - s.mean) - s.mean_rest;
}

// A row in double: null stays null.
template <class T>
const double* in_double(const T* row, double* scratch, int64_t n) {
  if (!row) return nullptr;
  for (int64_t i = 0; i < n; ++i) scratch[i] = to_double(row[i]);
  return scratch;
}

inline bool on_a_cache_line(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

// Row `row` in the arithmetic type: where it lies, or widened into scratch.
inline const double* row_of(const Rows& rows, int64_t row, int64_t, double*) {
  return static_cast<const double*>(rows.data) + row_offset(rows.layout, row);
}
inline const float* row_of(const Rows& rows, int64_t row, int64_t n, float* scratch) {
  const int64_t offset = row_offset(rows.layout, row);
  switch (rows.dtype) {
    case DType::bfloat16: return widen(static_cast<const bf16*>(rows.data) + offset, scratch, n);
    case DType::float16: return widen(static_cast<const f16*>(rows.data) + offset, scratch, n);
    default: return static_cast<const float*>(rows.data) + offset;
  }
}

// Calls body with the address of row `row`, in its own type.
template <class C, class Body>
inline void with_row(const Rows& rows, int64_t row, const Body& body) {
  const int64_t offset = row_offset(rows.layout, row);
  if constexpr (std::is_same_v<C, double>) {
    body(static_cast<double*>(rows.data) + offset);
  } else {
    switch (rows.dtype) {
      case DType::bfloat16: return body(static_cast<bf16*>(rows.data) + offset);
      case DType::float16: return body(static_cast<f16*>(rows.data) + offset);
      default: return body(static_cast<float*>(rows.data) + offset);
    }
  }
}

}  // namespace
}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
