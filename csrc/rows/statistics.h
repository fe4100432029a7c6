// Statistics of one row, shared by the forward and the backward of the row pattern.
//
// Mean and variance come from the differences from a shift and their squares, in one pass. The shift is the mean of the
// first two vectors of elements, which is as good as the row's mean where it lies within half a deviation of it; where
// it does not, a second pass (the row is in cache) takes the mean as shift. So a mean of 1e4 with a spread of 0.01
// costs no accuracy, and a constant row gives exactly 0. The mean is kept in two parts, for where its rounding matters
// against the spread. A row whose scale leaves the range in which float squares are safe is done again in double:
// float's whole range fits there.
#pragma once

#include <type_traits>

#include "core/lines.h"
#include "rows/kernels.h"
#include "core/pairs.h"

namespace evenkeel::EVENKEEL_ISA {

void forward_rows(const RowsForward& a, int64_t begin, int64_t end);
void backward_tasks(const RowsBackward& a, int64_t begin, int64_t end);
bool few_slopes(const RowsBackward& a, void* slopes, int64_t begin, int64_t end);
void few_blocks(const RowsBackward& a, void* slopes, const Values& dweight, const Values& dbias, int64_t begin,
                int64_t end);

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

inline bool safe(const Statistics<float>& s) { return in_float_range(s.reciprocal); }
inline bool safe(const Statistics<double>&) { return true; }

// Rows are measured in groups, as many as a vector has doubles: a statistic ends in a chain of divisions and a root,
// and eight of them take no longer than one. What a row gives does not depend on its group.
constexpr int most_in_group = 8;
template <class C>
struct Group {
  typename Eight<C>::vector mean, mean_rest, reciprocal, bend;
  Statistics<C> operator[](int i) const { return {mean[i], mean_rest[i], reciprocal[i], bend[i]}; }
};

// Of each row a shift, and the lanes of its sums of differences from the shift and of their squares.
template <class C>
struct Sums {
  C shift[most_in_group];
  Doubles first[most_in_group], second[most_in_group];
};

// The sums of `count` vectors' lanes: of several, as many at a time as a vector has doubles.
EVENKEEL_INLINE Doubles sums_of_rows(const Doubles (&v)[most_in_group], int count) {
  return count == 1 ? Doubles{} + sum_of_lanes(v[0]) : sums_of_lanes(v);
}

// The means of the rows' beginnings, or of short rows: exact where the elements of one are equal.
template <class C, class T>
void take_shifts(const T* const* x, int count, int64_t n, Sums<C>& sums) {
  constexpr int width = Lanes<C>::width;
  if (n < width) {
    for (int i = 0; i < count; ++i) {
      const Rest<C> row{0, static_cast<int>(n)};
      const C first = static_cast<C>(to_double(x[i][0]));
      sums.shift[i] = first + static_cast<C>(sum_of_lanes(row.keep(row.load(x[i]) - first))) / static_cast<C>(n);
    }
    return;
  }
  const bool two = n >= 2 * width;
  const C part = C(1) / static_cast<C>(two ? 2 * width : width);
  const auto beginning = [&](int i) { return two ? load(x[i]) + load(x[i] + width) : load(x[i]); };
  if (count == 1) {
    sums.shift[0] = sum_of_lanes(beginning(0)) * part;
    return;
  }
  Vector<C> lanes[most_in_group] = {};
  for (int i = 0; i < count; ++i) lanes[i] = beginning(i);
  store_bytes_of(sums.shift, sums_of_lanes(lanes) * part);
}

// Row i's sums of differences from the shift, for a statistic that is centred, and of their squares.
template <class C, class T>
void take_sums(const T* x, const RowsSpec& spec, Sums<C>& sums, int i) {
  using L = typename Summed<T>::lanes;
  using V = Vector<L>;
  if (spec.center()) {
    const C shift = sums.shift[i];
    Doubles totals[2] = {};
    add_terms<L>(spec.features, totals, [&](auto at, V(&out)[2]) {
      const V d = at.keep(at.load(x) - shift);
      out[0] = d;
      out[1] = d * d;
    });
    sums.first[i] = totals[0];
    sums.second[i] = totals[1];
  } else {
    Doubles totals[1] = {};
    add_terms<L>(spec.features, totals, [&](auto at, V(&out)[1]) {
      const V v = at.load(x);
      out[0] = v * v;
    });
    sums.second[i] = totals[0];
  }
}

// Means and mean squares from the sums. `far`: the shift lies so far from the mean that the sums lost bits.
struct Moments {
  Doubles square;
  LaneMask<double> far;
};

template <class C>
Moments conclude(const RowsSpec& spec, const Sums<C>& sums, int count, Group<C>& s) {
  const double n = spec.count();
  Doubles shift{}, offset{};
  if (spec.center()) {
    shift = count == 1 ? Doubles{} + static_cast<double>(sums.shift[0]) : Eight<C>::widened(sums.shift);
    offset = sums_of_rows(sums.first, count) / n;
  }
  s.mean = Eight<C>::from(shift + offset);
  s.mean_rest = Eight<C>::from((shift - as_doubles(s.mean)) + offset);
  const Doubles square = sums_of_rows(sums.second, count) / n - offset * offset;
  return {choose(square < 0, Doubles{}, square), ~(4 * offset * offset <= square)};
}

template <class C>
void take_reciprocals(const RowsSpec& spec, Doubles square, Group<C>& s) {
  const Doubles one = Doubles{} + 1;
  if (spec.options.eps_mode == EpsMode::inside) {
    s.reciprocal = Eight<C>::from(one / root_of(square + spec.options.eps));
    s.bend = Eight<C>::from(one);
    return;
  }
  const Doubles root = root_of(square), eps = Doubles{} + spec.options.eps;
  if (spec.options.eps_mode == EpsMode::outside) {
    s.reciprocal = Eight<C>::from(one / (root + eps));
    s.bend = Eight<C>::from(choose(root == 0, Doubles{}, (root + eps) / root));
  } else {
    s.reciprocal = Eight<C>::from(one / choose(root < eps, Doubles{} + eps, root));
    s.bend = Eight<C>::from(choose(root < eps, Doubles{}, one));
  }
}

// The statistics of `count` rows.
template <class C, class T>
Group<C> measure(const T* const* x, int count, const RowsSpec& spec) {
  Sums<C> sums;
  if (count < most_in_group) sums = Sums<C>{};  // by itself: clearing them takes as long as a short row
  if (spec.center()) take_shifts<C>(x, count, spec.features, sums);
  for (int i = 0; i < count; ++i) take_sums<C>(x[i], spec, sums, i);
  Group<C> s;
  Moments moments = conclude(spec, sums, count, s);
  if (spec.center() && any(moments.far)) {
    for (int i = 0; i < count; ++i) {
      if (!moments.far[i]) continue;
      sums.shift[i] = s.mean[i];
      take_sums<C>(x[i], spec, sums, i);
    }
    moments = conclude(spec, sums, count, s);
  }
  take_reciprocals(spec, moments.square, s);
  return s;
}

template <class C, class T>
Statistics<C> measure(const T* x, const RowsSpec& spec) {
  return measure<C>(&x, 1, spec)[0];
}

template <class C>
void save(const Statistics<C>& s, const RowsSpec& spec, C* saved) {
  if (spec.center()) {
    *saved++ = s.mean;
    *saved++ = s.mean_rest;
  }
  *saved++ = s.reciprocal;
  if (spec.options.eps_mode != EpsMode::inside) *saved = s.bend;
}

template <class C>
Statistics<C> restore(const RowsSpec& spec, const C* saved) {
  Statistics<C> s{0, 0, 0, 1};
  if (spec.center()) {
    s.mean = *saved++;
    s.mean_rest = *saved++;
  }
  s.reciprocal = *saved++;
  if (spec.options.eps_mode != EpsMode::inside) s.bend = *saved;
  return s;
}

// What is subtracted: nothing, the mean, or both its parts. done: the row is normalized already.
enum class Centring { none, rounded, both, done };

// The second part is left out where it is below 2^-27 of the scale: a thirtieth of an ulp of the largest values.
template <class C>
Centring centring_of(const RowsSpec& spec, const Statistics<C>& s) {
  if (!spec.center()) return Centring::none;
  const C part = s.mean_rest * s.reciprocal;
  const bool negligible = sizeof(C) == sizeof(float) && part < C(0x1p-27) && part > C(-0x1p-27);
  return negligible ? Centring::rounded : Centring::both;
}

// Returns body(the row's centring as a compile-time constant).
template <class C, class Body>
inline auto with_centring(const RowsSpec& spec, const Statistics<C>& s, const Body& body) {
  switch (centring_of(spec, s)) {
    case Centring::none: return body(std::integral_constant<Centring, Centring::none>{});
    case Centring::rounded: return body(std::integral_constant<Centring, Centring::rounded>{});
    default: return body(std::integral_constant<Centring, Centring::both>{});
  }
}

template <Centring centring, class C, class T, class At>
inline auto centred(const At& at, const T* x, const Statistics<C>& s) {
  if constexpr (centring == Centring::none || centring == Centring::done) {
    return at.load(x);
  } else if constexpr (centring == Centring::rounded) {
    return at.load(x) - s.mean;
  } else {
    return (at.load(x) - s.mean) - s.mean_rest;
  }
}

// Row `row` of a tensor of T, or null where there is none.
template <class T>
inline T* row_at(const Rows& rows, int64_t row) {
  return rows.data ? static_cast<T*>(rows.data) + row_offset(rows.layout, row) : nullptr;
}

// The rows of a tensor of T, found by one multiplication where all lie equally far apart; null where there is none.
template <class T>
class RowPlaces {
 public:
  explicit RowPlaces(const Rows& rows)
      : rows_(rows),
        data_(static_cast<T*>(rows.data)),
        step_(rows.layout.axes ? rows.layout.strides[0] : 0),
        is_even_(rows.layout.axes < 2) {}
  T* operator[](int64_t row) const { return is_even_ ? data_ + row * step_ : row_at<T>(rows_, row); }

 private:
  const Rows& rows_;
  T* const data_;
  const int64_t step_;
  const bool is_even_;
};

// Elements from a row to the one that is so many later.
inline int64_t distance_to(const Rows& rows, int64_t row, int64_t later) {
  return row_offset(rows.layout, row + later) - row_offset(rows.layout, row);
}

// A row in double: null stays null.
template <class T>
const double* in_double(const T* row, double* scratch, int64_t n) {
  if (!row) return nullptr;
  for (int64_t i = 0; i < n; ++i) scratch[i] = to_double(row[i]);
  return scratch;
}

// Whether stores from p on reach a cache line at all.
template <class T>
inline bool reaches_a_line(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % sizeof(T) == 0;
}

// What to walk of a row of n elements before its stores lie on cache lines: of long rows, where a vector fills a line.
// A store across two lines takes twice as long; of 16-bit rows the arithmetic takes longer than either.
template <class T>
inline int64_t head_of(const T* p, int64_t n, bool streamed) {
  return streamed || (sizeof(T) >= 4 && n >= 64) ? elements_to_line(p) : 0;
}

// Row `row` in the compute dtype: where it lies, or widened into scratch.
inline const double* row_of(const Rows& rows, int64_t row, int64_t, double*) {
  return row_at<double>(rows, row);
}
inline const float* row_of(const Rows& rows, int64_t row, int64_t n, float* scratch) {
  switch (rows.dtype) {
    case DType::bfloat16: return widen(row_at<bf16>(rows, row), scratch, n);
    case DType::float16: return widen(row_at<f16>(rows, row), scratch, n);
    default: return row_at<float>(rows, row);
  }
}

// Returns body(address of row `row`, in its own type).
template <class C, class Body>
inline auto with_row(const Rows& rows, int64_t row, const Body& body) {
  if constexpr (std::is_same_v<C, double>) {
    return body(row_at<double>(rows, row));
  } else {
    switch (rows.dtype) {
      case DType::bfloat16: return body(row_at<bf16>(rows, row));
      case DType::float16: return body(row_at<f16>(rows, row));
      default: return body(row_at<float>(rows, row));
    }
  }
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
