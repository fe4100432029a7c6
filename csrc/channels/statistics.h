// Statistics of the channel kernels: from merged sums, saved and restored.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "channels/kernels.h"
#include "core/positions.h"

namespace evenkeel::EVENKEEL_ISA {

template <class C>
struct ChannelStatistics {
  C mean, mean_rest, reciprocal, reciprocal_rest, bend;
  double exact_mean() const { return static_cast<double>(mean) + static_cast<double>(mean_rest); }
  double exact_reciprocal() const { return static_cast<double>(reciprocal) + static_cast<double>(reciprocal_rest); }
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

}  // namespace evenkeel::EVENKEEL_ISA
