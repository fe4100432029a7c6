// What is multiplied and added for each column, lane or channel: of the affine, then of its gradient.
#pragma once

#include "channels/affine.h"

namespace evenkeel::EVENKEEL_ISA {

// Of neighbouring columns from a position on; 0 in the lanes past the end, where memory holds anything: denormal numbers
// there made a SiLU of rows of 24 columns take eight times as long.
template <class At, class C>
EVENKEEL_INLINE Vector<C> factor_at(const At& at, const C* factor) {
  return at.keep(Whole<C>{at.i}.load(factor));
}

// The same of factors in the order of the lanes, past the last of which those of pairs are zeros.
template <class At, class C>
EVENKEEL_INLINE auto factor_in_order(const At& at, const C* factor) {
  if constexpr (std::is_same_v<typename At::V, Pair>) {
    return Whole<pair>{at.i}.load_in_order(factor);
  } else {
    return factor_at(at, factor);
  }
}

// A position's parameters, where there are any.
template <class At>
EVENKEEL_INLINE Doubles parameter_at(const At& at, const double* values, double otherwise) {
  return values ? at.load(values) : Doubles{} + otherwise;
}

// The affines of n neighbouring statistics, or of one that they share.
template <class C, class Statistics>
EVENKEEL_INLINE void find_affines(const Statistics& s, int64_t n, const double* weights, const double* biases, C* mean,
                                  C* scale, C* shift) {
  for_each_position<double>(n, [&](auto at) {
    const Doubles exact = s.exact_reciprocal(at.i) * parameter_at(at, weights, 1);
    store_rounded(at, mean, s.wide_mean(at.i));
    store_rounded(at, scale, exact);
    store_rounded(at, shift, parameter_at(at, biases, 0) - s.wide_mean_rest(at.i) * exact);
  });
}

template <class C>
struct Factors {
  C *mean, *scale, *shift, *reciprocal, *weight, *gradient_shift, *slope;
  // of remembered statistics: the affine in double, and 1 where it takes that since its terms may cancel
  double *exact_mean, *exact_scale, *exact_bias;
  uint8_t* cancels;
  // those from one on, of `count` whose memory begins there
  EVENKEEL_INLINE Factors(double* memory, int64_t count, int64_t first) {
    const auto place = [&](auto*& factor) {
      using T = std::remove_reference_t<decltype(*factor)>;
      factor = reinterpret_cast<T*>(memory) + first;
      memory += padded(count) * sizeof(T) / sizeof(double);
    };
    for (C** factor : {&mean, &scale, &shift, &reciprocal, &weight, &gradient_shift, &slope}) place(*factor);
    for (double** factor : {&exact_mean, &exact_scale, &exact_bias}) place(*factor);
    place(cancels);
  }
  Affine<C> affine_of(int64_t i) const { return {mean[i], scale[i], shift[i]}; }
  // the means of n neighbouring statistics, or of one
  template <class Statistics>
  void set_mean(const Statistics& s, int64_t n) const {
    for_each_position<double>(n, [&](auto at) { store_rounded(at, mean, s.wide_mean(at.i)); });
  }
  // their affine
  template <class Statistics>
  void set_affine(const Statistics& s, int64_t n, const double* weights, const double* biases) const {
    find_affines(s, n, weights, biases, mean, scale, shift);
  }
  // the same of remembered statistics, and in double
  void set_remembered(const StatisticsStrip<C>& s, int64_t n, const double* weights, const double* biases) const {
    set_affine(s, n, weights, biases);
    for_each_position<double>(n, [&](auto at) {
      const Doubles weight_of = parameter_at(at, weights, 1), bias = parameter_at(at, biases, 0);
      at.store(exact_mean, s.exact_mean(at.i));
      at.store(exact_scale, s.exact_reciprocal(at.i) * weight_of);
      at.store(exact_bias, bias);
      const auto bytes = convert<VectorOf<uint8_t, 8>>(-may_cancel(s, at.i, weight_of, bias));
      std::memcpy(cancels + at.i, &bytes, std::min<int64_t>(n - at.i, sizeof(bytes)));
    });
  }
  // the affine's gradient; mean_g and mean_gx give the statistics' means of g and g * x_hat
  template <class Statistics, class MeanG, class MeanGx>
  void set_gradient(const Statistics& s, int64_t n, const double* weights, const MeanG& mean_g,
                    const MeanGx& mean_gx) const {
    for_each_position<double>(n, [&](auto at) {
      const Doubles exact = s.exact_reciprocal(at.i), along = exact * s.wide_bend(at.i) * mean_gx(at);
      store_rounded(at, reciprocal, exact);
      store_rounded(at, weight, exact * parameter_at(at, weights, 1));
      store_rounded(at, slope, along);
      store_rounded(at, gradient_shift, (mean_g(at) - s.wide_mean_rest(at.i) * along) * exact);
    });
  }
  // y, or the input of the activation
  template <class At, class V>
  V affine(const At& at, V x) const {
    return (x - factor_at(at, mean)) * factor_at(at, scale) + factor_at(at, shift);
  }
  // the same in double
  Vector<C> exact(int64_t i, Vector<C> x) const {
    Wide<C> wide(x);
    for (int part = 0; part < Wide<C>::parts; ++part) {
      const int64_t at = i + part * Lanes<double>::width;
      wide.part[part] = (wide.part[part] - load(exact_mean + at)) * load(exact_scale + at) + load(exact_bias + at);
    }
    return wide.rounded();
  }
  LaneMask<C> lanes_that_cancel(int64_t i) const {
    return -convert<LaneMask<C>>(load_bytes_of<VectorOf<uint8_t, Lanes<C>::width>>(cancels + i));
  }
  bool any_cancels(int64_t i) const {
    uint64_t any = 0;
    for (int at = 0; at < Lanes<C>::width; at += 8) {
      uint64_t word;
      std::memcpy(&word, cancels + i + at, sizeof(word));
      any |= word;
    }
    return any;
  }
};

// The factors of a block's columns, from one on.
template <class C>
EVENKEEL_INLINE Factors<C> column_factors(const ChannelsCall& a, int64_t outer, int64_t first = 0) {
  const ChannelsGeometry& g = a.geometry;
  return {static_cast<double*>(a.factors) + (outer - a.first_block) * factors_of_block(g), g.width, first};
}
// The factors of a block's lanes, which where a column is a lane are the same.
template <class C>
EVENKEEL_INLINE Factors<C> lane_factors(const ChannelsCall& a, int64_t outer, int64_t first = 0) {
  const ChannelsGeometry& g = a.geometry;
  if (g.per_channel == 1) return column_factors<C>(a, outer, first);
  double* const memory = static_cast<double*>(a.factors) + (outer - a.first_block) * factors_of_block(g);
  return {memory + factors_size(g.width), g.lanes_of_row, first};
}

// Each of n values `each` times in a row; of a zero without its sign.
template <class C>
inline void repeat_each(const C* values, int64_t n, int64_t each, C* out) {
  constexpr int64_t width = register_bytes / sizeof(C);
  C* const end = out + n * each;
  for (int64_t i = 0; i < n; ++i, out += each) {
    const C value = static_cast<C>(C(0) + values[i]);
    const auto several = VectorOf<C, register_bytes>{} + value;
    for (int64_t k = 0; k < each; k += width) {
      if (out + k + width <= end) {  // where that is more than it takes, the next value overwrites it
        store_bytes_of(out + k, several);
      } else {
        for (C* rest = out + k; rest < out + each; ++rest) *rest = value;
      }
    }
  }
}

}  // namespace evenkeel::EVENKEEL_ISA
