// What the channel kernels share: a statistic from its merged sums, saved and restored; dtypes; names of the tables.
#pragma once

#include <cmath>

#include "channels_kernels.h"
#include "simd.h"

namespace evenkeel {
namespace EVENKEEL_ISA {

template <class C>
struct ChannelStatistics {
  C mean, mean_rest, reciprocal, bend;
};

// Scales between which float squares neither overflow nor lose bits to underflow (with or without flush-to-zero).
inline bool in_range(const ChannelStatistics<float>& s) {
  return s.reciprocal > 0x1p-60f && s.reciprocal < 0x1p48f;
}
inline bool in_range(const ChannelStatistics<double>&) { return true; }

// The sums of one statistic, taken about the first item's shift.
struct MergedSums {
  double shift = 0, sum = 0, square = 0;
  bool empty = true;
  void add(double count, double item_shift, double item_sum, double item_square) {
    if (empty) shift = item_shift;
    empty = false;
    const double step = item_shift - shift;
    sum += item_sum + count * step;
    square += item_square + step * (2 * item_sum + count * step);
  }
};

template <class C>
void set_scale(ChannelStatistics<C>& s, double variance, double eps, EpsMode mode) {
  const double root = std::sqrt(variance);
  s.bend = 1;
  if (mode == EpsMode::inside) {
    s.reciprocal = static_cast<C>(1.0 / std::sqrt(variance + eps));
  } else if (mode == EpsMode::outside) {
    s.reciprocal = static_cast<C>(1.0 / (root + eps));
    s.bend = static_cast<C>(root == 0 ? 0.0 : (root + eps) / root);
  } else {
    s.reciprocal = static_cast<C>(1.0 / (root < eps ? eps : root));
    s.bend = root < eps ? 0 : 1;
  }
}

template <class C>
ChannelStatistics<C> conclude(const MergedSums& merged, const ChannelsCall& a, double* variance) {
  const double n = static_cast<double>(a.geometry.count), mean = merged.sum / n;
  ChannelStatistics<C> s;
  s.mean = static_cast<C>(merged.shift + mean);
  s.mean_rest = static_cast<C>(mean - (static_cast<double>(s.mean) - merged.shift));
  const double spread = merged.square / n - mean * mean;
  *variance = spread < 0 ? 0 : spread;
  set_scale(s, *variance, a.eps, a.eps_mode);
  return s;
}

template <class C>
void save_statistics(const ChannelsCall& a, int64_t index, const ChannelStatistics<C>& s) {
  C* saved = static_cast<C*>(a.statistics) + index * a.statistics_width();
  saved[0] = s.mean;
  saved[1] = s.mean_rest;
  saved[2] = s.reciprocal;
  if (a.eps_mode != EpsMode::inside) saved[3] = s.bend;
}

template <class C>
ChannelStatistics<C> restore_statistics(const ChannelsCall& a, int64_t index) {
  if (a.remembered) index %= a.geometry.channels;
  const C* saved = static_cast<const C*>(a.statistics) + index * a.statistics_width();
  return {saved[0], saved[1], saved[2], a.eps_mode == EpsMode::inside ? C(1) : saved[3]};
}

template <class C>
void save_merged(const ChannelsCall& a, int64_t index, const MergedSums& merged) {
  double variance;
  save_statistics(a, index, conclude<C>(merged, a, &variance));
  static_cast<C*>(a.variance)[index] = static_cast<C>(variance);
}

template <class C, class At, class T>
inline typename Lanes<C>::vector centred_at(const At& at, const T* x, const ChannelStatistics<C>& s) {
  return (at.load(x) - s.mean) - s.mean_rest;
}

// Factors of the differences from the mean, of fewer roundings than the steps they stand for: weight / scale in y, and
// bend * mean(g * x_hat) / scale in dx.
template <class C>
C scale_of(const ChannelStatistics<C>& s, double weight) {
  return static_cast<C>(static_cast<double>(s.reciprocal) * weight);
}
template <class C>
C slope_of(const ChannelStatistics<C>& s, double mean_gx) {
  return static_cast<C>(static_cast<double>(s.reciprocal) * static_cast<double>(s.bend) * mean_gx);
}

// A vector as doubles, lane by lane.
template <class C>
struct Wide {
  static constexpr int parts = Lanes<C>::width / Lanes<double>::width;
  Doubles part[parts];
  explicit Wide(typename Lanes<C>::vector v) {
    if constexpr (parts == 1) {
      part[0] = v;
    } else {
      HalfFloats halves[2];
      std::memcpy(halves, &v, sizeof(v));
      for (int i = 0; i < parts; ++i) part[i] = __builtin_convertvector(halves[i], Doubles);
    }
  }
};

// total[i] += v[i]
template <class C>
inline void add_lanes(typename Lanes<C>::vector v, double* total) {
  const Wide<C> wide(v);
  for (int i = 0; i < Wide<C>::parts; ++i) {
    double* at = total + i * Lanes<double>::width;
    store(at, load(at) + wide.part[i]);
  }
}

template <class Body>
void by_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::float32: return body(float{});
    case DType::float64: return body(double{});
    case DType::bfloat16: return body(bf16{});
    case DType::float16: return body(f16{});
  }
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel

#define EVENKEEL_JOIN_(a, b) a##b
#define EVENKEEL_JOIN(a, b) EVENKEEL_JOIN_(a, b)
