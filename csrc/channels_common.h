// What the channel kernels share: a statistic from its merged sums, saved and restored; dtypes; names of the tables.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "channels_activation.h"
#include "channels_kernels.h"
#include "simd.h"

namespace evenkeel {
namespace EVENKEEL_ISA {

template <class C>
struct ChannelStatistics {
  C mean, mean_rest, reciprocal, reciprocal_rest, bend;
  double exact_mean() const { return static_cast<double>(mean) + static_cast<double>(mean_rest); }
  double exact_reciprocal() const { return static_cast<double>(reciprocal) + static_cast<double>(reciprocal_rest); }
};

// Scales between which float squares neither overflow nor lose bits to underflow (with or without flush-to-zero).
inline bool in_range(const ChannelStatistics<float>& s) {
  return s.reciprocal > 0x1p-60f && s.reciprocal < 0x1p48f;
}
inline bool in_range(const ChannelStatistics<double>&) { return true; }

// Whether the forward left a statistic NaN, its repair included: then a value is, and so is every result.
template <class C>
bool is_nan(const ChannelStatistics<C>& s) {
  return s.reciprocal != s.reciprocal;
}

// Whether float holds weight / scale for weights between two: the kernels multiply by it at once.
inline bool holds_scale(const ChannelStatistics<float>& s, double smallest, double largest) {
  const double reciprocal = s.exact_reciprocal();
  return smallest * reciprocal >= smallest_normal && largest * reciprocal <= 0x1p127;
}
inline bool holds_scale(const ChannelStatistics<double>&, double, double) { return true; }

// The sums of one statistic, taken about the first item's shift.
struct MergedSums {
  double shift = 0, sum = 0, square = 0, count = 0;
  void add(double item_count, double item_shift, double item_sum, double item_square) {
    if (item_count == 0) return;
    if (count == 0) shift = item_shift;
    const double step = item_shift - shift;
    count += item_count;
    sum += item_sum + item_count * step;
    square += item_square + step * (2 * item_sum + item_count * step);
  }
  // the same of n items of as many elements each
  void add(double item_count, int64_t n, const double* shifts, const double* sums, const double* squares) {
    if (n < Lanes<double>::width) {
      for (int64_t i = 0; i < n; ++i) add(item_count, shifts[i], sums[i], squares[i]);
      return;
    }
    if (item_count == 0) return;
    if (count == 0) shift = shifts[0];
    Doubles total = {}, total_square = {};
    for_each_position<double>(n, [&](auto at) {
      const Doubles step = at.load(shifts) - shift, item_sum = at.load(sums);
      total += at.keep(item_sum + item_count * step);
      total_square += at.keep(at.load(squares) + step * (2.0 * item_sum + item_count * step));
    });
    count += static_cast<double>(n) * item_count;
    sum += sum_of_lanes(total);
    square += sum_of_lanes(total_square);
  }
};

// Whether sums about a shift need no second pass about a better one: the shift is within a deviation of the mean, or
// half of one. Half is more accurate where one element makes the deviation, but one column in twenty would need the
// second.
inline bool is_fair_shift(double count, double sum, double square) { return 2 * sum * sum <= count * square; }
inline bool is_good_shift(double count, double sum, double square) { return 5 * sum * sum <= count * square; }

// Elements that share a statistic; 1 where none is valid.
inline double count_of(const ChannelsCall& a, int64_t statistic) {
  const ChannelsGeometry& g = a.geometry;
  if (!a.mask) return static_cast<double>(g.count);
  const int64_t positions = g.groups ? a.valid[statistic / g.groups] * (g.channels / g.groups) : a.valid[0];
  return static_cast<double>(positions > 0 ? positions : 1);
}

template <class C>
void set_scale(ChannelStatistics<C>& s, double variance, double eps, EpsMode mode) {
  const double root = std::sqrt(variance);
  double reciprocal;
  s.bend = 1;
  if (mode == EpsMode::inside) {
    reciprocal = 1.0 / std::sqrt(variance + eps);
  } else if (mode == EpsMode::outside) {
    reciprocal = 1.0 / (root + eps);
    // the largest number for what is beyond it: there the bend is of no account, x_hat being its reciprocal
    constexpr double largest = std::numeric_limits<C>::max();
    s.bend = static_cast<C>(root == 0 ? 0.0 : std::min((root + eps) / root, largest));
  } else {
    reciprocal = 1.0 / (root < eps ? eps : root);
    s.bend = root < eps ? 0 : 1;
  }
  s.reciprocal = static_cast<C>(reciprocal);
  s.reciprocal_rest = static_cast<C>(reciprocal - static_cast<double>(s.reciprocal));
}

template <class C>
ChannelStatistics<C> conclude(const MergedSums& merged, const ChannelsCall& a, double* variance) {
  ChannelStatistics<C> s{};
  if (merged.count == 0) {  // nothing valid: any statistics will do that are finite
    *variance = 1;
    set_scale(s, *variance, a.options.eps, a.options.eps_mode);
    return s;
  }
  const double n = merged.count, mean = merged.sum / n;
  s.mean = static_cast<C>(merged.shift + mean);
  s.mean_rest = static_cast<C>(mean - (static_cast<double>(s.mean) - merged.shift));
  const double spread = merged.square / n - mean * mean;
  *variance = spread < 0 ? 0 : spread;
  set_scale(s, *variance, a.options.eps, a.options.eps_mode);
  return s;
}

template <class C>
void save_statistics(const ChannelsCall& a, int64_t index, const ChannelStatistics<C>& s) {
  C* saved = static_cast<C*>(a.statistics) + index * a.statistics_width();
  saved[0] = s.mean;
  saved[1] = s.mean_rest;
  saved[2] = s.reciprocal;
  saved[3] = s.reciprocal_rest;
  if (a.options.eps_mode != EpsMode::inside) saved[4] = s.bend;
}

template <class C>
ChannelStatistics<C> restore_statistics(const ChannelsCall& a, int64_t index) {
  if (a.remembered) index %= a.geometry.channels;
  const C* saved = static_cast<const C*>(a.statistics) + index * a.statistics_width();
  return {saved[0], saved[1], saved[2], saved[3], a.options.eps_mode == EpsMode::inside ? C(1) : saved[4]};
}

template <class C>
ChannelStatistics<C> save_merged(const ChannelsCall& a, int64_t index, const MergedSums& merged) {
  double variance;
  const ChannelStatistics<C> s = conclude<C>(merged, a, &variance);
  save_statistics(a, index, s);
  static_cast<C*>(a.variance)[index] = static_cast<C>(variance);
  return s;
}

// y = (x - mean) * scale + shift, of fewer roundings than the steps it stands for. What the mean lost in rounding is in
// the shift: the elements are no finer than an ulp of the mean, so against their spread it is small.
template <class C>
struct Affine {
  C mean, scale, shift;
  Affine(const ChannelStatistics<C>& s, double weight, double bias) : mean(s.mean) {
    const double exact = s.exact_reciprocal() * weight;
    scale = static_cast<C>(exact);
    shift = static_cast<C>(bias - static_cast<double>(s.mean_rest) * exact);
  }
  typename Lanes<C>::vector operator()(typename Lanes<C>::vector x) const { return (x - mean) * scale + shift; }
};

// Factors of the differences from the mean: weight / scale in y, and bend * mean(g * x_hat) / scale in dx.
template <class C>
C scale_of(const ChannelStatistics<C>& s, double weight) {
  return static_cast<C>(s.exact_reciprocal() * weight);
}
template <class C>
double exact_slope_of(const ChannelStatistics<C>& s, double mean_gx) {
  return s.exact_reciprocal() * static_cast<double>(s.bend) * mean_gx;
}

// dx = g * weight - shift - x_hat * slope, with everything over the scale and x_hat from the rounded mean.
template <class C>
struct Projection {
  using V = typename Lanes<C>::vector;
  C mean, reciprocal, weight, shift, slope;
  Projection(const ChannelStatistics<C>& s, double w, double mean_g, double mean_gx)
      : mean(s.mean), reciprocal(s.reciprocal), weight(scale_of(s, w)) {
    const double exact = s.exact_reciprocal(), along = exact_slope_of(s, mean_gx);
    slope = static_cast<C>(along);
    shift = static_cast<C>((mean_g - static_cast<double>(s.mean_rest) * along) * exact);
  }
  V operator()(V g, V x) const { return (g * weight - shift) - ((x - mean) * reciprocal) * slope; }
};

// Whether the sums of the backward may be of floats in their shortest parts. Where few channels share a parameter's
// gradient, all of them may by chance be far smaller than their terms, and the terms' roundings show.
inline bool sums_are_short(const ChannelsCall& a) {
  constexpr int64_t many_channels = 16;
  return a.dtype == DType::float64 || (!a.remembered && a.geometry.channels >= many_channels);
}

// Whether sums of floats hold: none left float's range, nor did terms that add up to so little leave it below.
template <class C>
bool sums_hold(double gradient, double product) {
  if constexpr (sizeof(C) == sizeof(double)) return true;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const bool finite = std::abs(gradient) < infinity && std::abs(product) < infinity;
  return finite & ((std::abs(product) >= 0x1p-90) | ((product == 0) & (gradient == 0)));
}

inline void fetch(const void* p) { __builtin_prefetch(p, 0, 2); }
inline void fetch_to_write(const void* p) { __builtin_prefetch(p, 1, 2); }
// elements ahead of what is read and written now: no processor fetches the lines of an output ahead
constexpr int64_t soon = 1024;
inline bool on_a_cache_line(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

// Whether (x - mean) * scale + bias can be far smaller than its terms, which with statistics of this very input it
// cannot, or float does not hold the scale.
template <class C>
bool may_cancel(const ChannelStatistics<C>& s, double weight, double bias) {
  const double size = std::abs(weight);
  return std::abs(s.mean * s.reciprocal) > 4 || std::abs(bias) > 4 * size ||
         (is_normal(weight) && !holds_scale(s, size, size));
}

// A vector as doubles, lane by lane.
template <class C>
struct Wide {
  static constexpr int parts = Lanes<C>::width / Lanes<double>::width;
  Doubles part[parts];
  Wide() = default;
  explicit Wide(typename Lanes<C>::vector v) {
    if constexpr (parts == 1) {
      part[0] = v;
    } else {
      widen(v, part);
    }
  }
  typename Lanes<C>::vector rounded() const {
    if constexpr (parts == 1) {
      return part[0];
    } else {
      return as_floats(part);
    }
  }
};

// The differences from the mean, rounded as doubles are.
template <class C>
inline Wide<C> wide_centred(typename Lanes<C>::vector x, const ChannelStatistics<C>& s) {
  if constexpr (Wide<C>::parts == 1) return Wide<C>((x - s.mean) - s.mean_rest);
  Wide<C> v(x);
  const double mean = s.exact_mean();
  for (auto& part : v.part) part -= mean;
  return v;
}

// With few elements a gradient may by chance be far smaller than the terms that it is the difference of, and their
// float roundings show: then it is computed in double. Where statistics are given, only the activation's slope is at
// stake, and a sample's gradient must not depend on the batch.
inline bool has_few_elements(const ChannelsCall& a, int64_t statistic) {
  constexpr int64_t few = 64;
  if (a.remembered) return a.options.activation != Activation::none && a.geometry.positions <= few;
  return count_of(a, statistic) <= few;
}

// total[i] += v[i]
template <class C>
inline void add_lanes(typename Lanes<C>::vector v, double* total) {
  const Wide<C> wide(v);
  for (int i = 0; i < Wide<C>::parts; ++i) {
    double* at = total + i * Lanes<double>::width;
    store(at, load(at) + wide.part[i]);
  }
}

// Where everything is valid.
struct AllLanes {
  template <class At, class V>
  V keep(const At& at, V v) const {
    return at.keep(v);
  }
};

// A run of the mask, or null where everything is valid.
struct ValidLanes {
  const uint8_t* mask;

  template <class C>
  typename Lanes<C>::vector keep(const Whole<C>& at, typename Lanes<C>::vector v) const {
    return mask ? keep_lanes<C>(v, lanes<C>(at.i, Lanes<C>::width)) : v;
  }
  template <class C>
  typename Lanes<C>::vector keep(const Rest<C>& at, typename Lanes<C>::vector v) const {
    return mask ? keep_lanes<C>(v, lanes<C>(at.i, at.count)) : at.keep(v);
  }
  int64_t count(int64_t n) const {
    int64_t found = 0;
    for (int64_t i = 0; i < n; ++i) found += mask[i];
    return found;
  }

 private:
  template <class C>
  typename Lanes<C>::mask lanes(int64_t i, int count) const {
    typedef uint8_t Bytes __attribute__((vector_size(Lanes<C>::width)));
    Bytes bytes = {};
    std::memcpy(&bytes, mask + i, count);
    return -__builtin_convertvector(bytes, typename Lanes<C>::mask);
  }
};

template <class Body>
void by_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::float32: return body(float{});
    case DType::float64: return body(double{});
    case DType::bfloat16: return body(bf16{});
    case DType::float16: return body(f16{});
  }
}

// The activation known at compile time; without extras there is none.
template <bool extras, class Body>
inline void with_activation_of(const ChannelsCall& a, const Body& body) {
  if constexpr (extras) {
    with_activation(a.options.activation, body);
  } else {
    body(std::integral_constant<Activation, Activation::none>{});
  }
}

// Calls body(value of x's type, whether there is a mask or an activation or few elements, as a type).
template <class Body>
void by_dtype_and_extras(const ChannelsCall& a, const Body& body) {
  by_dtype(a.dtype, [&](auto t) {
    if (!a.mask && a.options.activation == Activation::none && !has_few_elements(a, 0)) {
      body(t, std::false_type{});
    } else {
      body(t, std::true_type{});
    }
  });
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel

#define EVENKEEL_JOIN_(a, b) a##b
#define EVENKEEL_JOIN(a, b) EVENKEEL_JOIN_(a, b)

// Defines a phase over items or statistics by the template of the same name with _range, and the table of all phases.
#define EVENKEEL_CHANNELS_PHASE(phase)                                                           \
  void phase(const ChannelsCall& a, int64_t begin, int64_t end) {                                \
    by_dtype_and_extras(a, [&](auto t, auto extras) {                                            \
      phase##_range<decltype(t), decltype(extras)::value>(a, begin, end);                        \
    });                                                                                          \
  }
// ... and that by the one with _one
#define EVENKEEL_ONE_BY_ONE(phase)                                                               \
  template <class T, bool extras>                                                                \
  void phase##_range(const ChannelsCall& a, int64_t begin, int64_t end) {                        \
    for (int64_t i = begin; i < end; ++i) phase##_one<T, extras>(a, i);                          \
  }
#define EVENKEEL_CHANNELS_WALK(table)                                                            \
  namespace evenkeel {                                                                           \
  namespace EVENKEEL_ISA {                                                                       \
  namespace {                                                                                    \
  EVENKEEL_CHANNELS_PHASE(prepare)                                                               \
  EVENKEEL_CHANNELS_PHASE(measure)                                                               \
  EVENKEEL_CHANNELS_PHASE(merge)                                                                 \
  EVENKEEL_CHANNELS_PHASE(write)                                                                 \
  EVENKEEL_CHANNELS_PHASE(sum)                                                                   \
  EVENKEEL_CHANNELS_PHASE(merge_sums)                                                            \
  EVENKEEL_CHANNELS_PHASE(write_gradient)                                                        \
  }                                                                                              \
  }                                                                                              \
  extern const ChannelsWalk EVENKEEL_JOIN(table, EVENKEEL_ISA);                                  \
  const ChannelsWalk EVENKEEL_JOIN(table, EVENKEEL_ISA) = {                                      \
      EVENKEEL_ISA::prepare, EVENKEEL_ISA::measure, EVENKEEL_ISA::merge, EVENKEEL_ISA::write,    \
      EVENKEEL_ISA::sum, EVENKEEL_ISA::merge_sums, EVENKEEL_ISA::write_gradient};                \
  }
