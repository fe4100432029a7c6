// Statistics of the channel kernels: from merged sums, saved and restored.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "channels/activation.h"
#include "channels/kernels.h"
#include "core/positions.h"

namespace evenkeel::EVENKEEL_ISA {

template <class C>
struct ChannelStatistics {
  C mean, mean_rest, reciprocal, reciprocal_rest, bend;
  double exact_mean() const { return static_cast<double>(mean) + static_cast<double>(mean_rest); }
  double exact_reciprocal() const { return static_cast<double>(reciprocal) + static_cast<double>(reciprocal_rest); }
  // as of neighbouring statistics that are all the same
  Doubles wide_mean(int64_t) const { return Doubles{} + static_cast<double>(mean); }
  Doubles wide_mean_rest(int64_t) const { return Doubles{} + static_cast<double>(mean_rest); }
  Doubles wide_bend(int64_t) const { return Doubles{} + static_cast<double>(bend); }
  Doubles exact_reciprocal(int64_t) const { return Doubles{} + exact_reciprocal(); }
};

inline bool in_range(const ChannelStatistics<float>& s) { return in_float_range(s.reciprocal); }
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
  if (a.remembered && index >= a.geometry.channels) index %= a.geometry.channels;  // a division takes long
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

// Eight numbers of the compute dtype as doubles, and back, rounded.
template <class C>
EVENKEEL_INLINE Doubles load_wide(const C* p) {
  return Eight<C>::widened(p);
}
template <class C>
EVENKEEL_INLINE void store_rounded(const Whole<double>& at, C* p, Doubles v) {
  store_bytes_of(p + at.i, Eight<C>::from(v));
}
template <class C>
EVENKEEL_INLINE void store_rounded(const Rest<double>& at, C* p, Doubles v) {
  for (int i = 0; i < at.count; ++i) p[at.i + i] = static_cast<C>(v[i]);
}

// Neighbouring statistics, side by side.
template <class C>
struct StatisticsStrip {
  C mean[longest_strip], mean_rest[longest_strip], reciprocal[longest_strip], reciprocal_rest[longest_strip],
      bend[longest_strip];
  ChannelStatistics<C> at(int64_t i) const {
    return {mean[i], mean_rest[i], reciprocal[i], reciprocal_rest[i], bend[i]};
  }
  // of eight from one on; behind the last one they are 0, as far as vectors of floats reach
  Doubles wide_mean(int64_t i) const { return load_wide(mean + i); }
  Doubles wide_mean_rest(int64_t i) const { return load_wide(mean_rest + i); }
  Doubles wide_bend(int64_t i) const { return load_wide(bend + i); }
  Doubles exact_mean(int64_t i) const { return load_wide(mean + i) + load_wide(mean_rest + i); }
  Doubles exact_reciprocal(int64_t i) const { return load_wide(reciprocal + i) + load_wide(reciprocal_rest + i); }

  void set_means(const double* means, int64_t n) {
    end_at(n);
    for_each_position<double>(n, [&](auto at) { set_mean(at, Doubles{}, at.load(means)); });
  }
  void set_scales(const double* variances, int64_t n, double eps, EpsMode mode) {
    if (mode != EpsMode::inside) {
      for (int64_t i = 0; i < n; ++i) {
        ChannelStatistics<C> s{};
        set_scale(s, variances[i], eps, mode);
        reciprocal[i] = s.reciprocal;
        reciprocal_rest[i] = s.reciprocal_rest;
        bend[i] = s.bend;
      }
      return;
    }
    for_each_position<double>(n, [&](auto at) {
      const Doubles exact = (Doubles{} + 1.0) / root_of(at.load(variances) + eps);
      store_rounded(at, reciprocal, exact);
      store_rounded(at, reciprocal_rest, exact - load_wide(reciprocal + at.i));
    });
    std::fill_n(bend, n, C(1));
  }
  // as conclude() does, of sums about shifts of `count` elements each
  void conclude(const ChannelsCall& a, double count, int64_t n, const double* shifts, const double* sums,
                const double* squares, double* variances) {
    end_at(n);
    if (count == 0) {  // nothing valid
      std::fill_n(mean, n, C(0));
      std::fill_n(mean_rest, n, C(0));
      std::fill_n(variances, n, 1.0);
    } else {
      for_each_position<double>(n, [&](auto at) {
        const Doubles offset = at.load(sums) / count, spread = at.load(squares) / count - offset * offset;
        set_mean(at, at.load(shifts), offset);
        at.store(variances, at_least<double>(0.0, spread));
      });
    }
    set_scales(variances, n, a.options.eps, a.options.eps_mode);
  }

  void save(const ChannelsCall& a, int64_t first, int64_t n) const {
    const int64_t width = a.statistics_width();
    C* saved = static_cast<C*>(a.statistics) + first * width;
    for (int64_t i = 0; i < n; ++i, saved += width) {
      saved[0] = mean[i];
      saved[1] = mean_rest[i];
      saved[2] = reciprocal[i];
      saved[3] = reciprocal_rest[i];
      if (width > 4) saved[4] = bend[i];
    }
  }
  void restore(const ChannelsCall& a, int64_t first, int64_t n) {
    end_at(n);
    const int64_t width = a.statistics_width();
    const C* saved = static_cast<const C*>(a.statistics) + first * width;
    for (int64_t i = 0; i < n; ++i, saved += width) {
      mean[i] = saved[0];
      mean_rest[i] = saved[1];
      reciprocal[i] = saved[2];
      reciprocal_rest[i] = saved[3];
      bend[i] = width > 4 ? saved[4] : C(1);
    }
  }

 private:
  void end_at(int64_t n) {
    for (C* values : {mean, mean_rest, reciprocal, reciprocal_rest, bend}) {
      std::fill(values + n, values + padded(n), C(0));
    }
  }
  template <class At>
  void set_mean(const At& at, Doubles shift, Doubles offset) {
    store_rounded(at, mean, shift + offset);
    store_rounded(at, mean_rest, offset - (load_wide(mean + at.i) - shift));
  }
};

}  // namespace evenkeel::EVENKEEL_ISA
