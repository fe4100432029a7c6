// Rows of a few elements, a channel each: neighbouring ones side by side, in double.
#pragma once

#include "channels/factors.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

constexpr int64_t few_elements = 16, rows_together = 32;

inline bool are_few(const ChannelsCall& a) {
  const ChannelsGeometry& g = a.geometry;
  return g.groups == g.channels && g.count <= few_elements && a.options.activation == Activation::none;
}

// Neighbouring rows of a sample.
template <class T>
struct FewRows {
  using C = Opmath<T>;
  const ChannelsCall& call;
  const int64_t first, channel, rows, count;
  double weights[rows_together], biases[rows_together];

  FewRows(const ChannelsCall& a, int64_t statistic, int64_t end)
      : call(a),
        first(statistic),
        channel(statistic % a.geometry.channels),
        rows(std::min({rows_together, end - statistic, a.geometry.channels - channel})),
        count(a.geometry.count) {
    for (int64_t i = 0; i < rows; ++i) weights[i] = a.weight_of((channel + i) * count);
    for (int64_t i = 0; i < rows; ++i) biases[i] = a.bias_of((channel + i) * count);
  }
  // their elements in a tensor
  template <class U>
  U* of(U* tensor) const {
    return tensor + first * count;
  }
  // element k of row i at k * rows_together + i
  void turn(const void* tensor, C* out) const {
    C scratch[few_elements * rows_together];
    const C* source = widen(of(static_cast<const T*>(tensor)), scratch, rows * count);
    for (int64_t i = 0; i < rows; ++i, source += count) {
      for (int64_t k = 0; k < count; ++k) out[k * rows_together + i] = source[k];
    }
  }
  // body(position, part of it, the first of its doubles), for parts of vectors of the rows' elements
  void write(std::initializer_list<const double*> factors, const auto& result) const {
    double all[4][few_elements * rows_together];
    int which = 0;
    for (const double* factor : factors) repeat_each(factor, rows, count, all[which++]);
    T* const out = of(static_cast<T*>(call.out));
    for_each_position<C>(rows * count, [&](auto at) {
      at.store(out, result(at, [&](int factor, int part) {
        return load(all[factor] + at.i + part * Lanes<double>::width);
      }).rounded());
    });
  }
};

template <class T>
void measure_few(const FewRows<T>& few) {
  using C = Opmath<T>;
  const ChannelsCall& a = few.call;
  C x[few_elements * rows_together] = {};
  double shifts[rows_together], sums[rows_together], squares[rows_together], variances[rows_together];
  few.turn(a.x, x);
  const auto sum_about = [&](const auto& at, Doubles shift) {
    Doubles sum = {}, square = {};
    for (int64_t k = 0; k < few.count; ++k) {
      const Doubles d = load_wide(x + k * rows_together + at.i) - shift;
      sum += d;
      square += d * d;
    }
    at.store(shifts, shift);
    at.store(sums, sum);
    at.store(squares, square);
    return shift + sum / static_cast<double>(few.count);
  };
  for_each_position<double>(few.rows, [&](auto at) {
    const Doubles mean = sum_about(at, load_wide(x + at.i));
    if constexpr (sizeof(C) == sizeof(double)) sum_about(at, mean);
  });
  StatisticsStrip<C> s;
  s.conclude(a, static_cast<double>(few.count), few.rows, shifts, sums, squares, variances);
  s.save(a, few.first, few.rows);
  for (int64_t i = 0; i < few.rows; ++i) static_cast<C*>(a.variance)[few.first + i] = static_cast<C>(variances[i]);
  double memory[factors_size(rows_together)];
  const Factors<double> factors(memory, rows_together, 0);
  factors.set_affine(s, few.rows, few.weights, few.biases);
  const T* source = few.of(static_cast<const T*>(a.x));
  few.write({factors.mean, factors.scale, factors.shift}, [&](const auto& at, const auto& factor) {
    Wide<C> v(at.load(source));
    for (int i = 0; i < Wide<C>::parts; ++i) v.part[i] = (v.part[i] - factor(0, i)) * factor(1, i) + factor(2, i);
    return v;
  });
}

// dx of the rows, and what they add to the gradients of the affine
template <class T>
void sum_few(const FewRows<T>& few) {
  using C = Opmath<T>;
  const ChannelsCall& a = few.call;
  const double n = static_cast<double>(few.count);
  C x[few_elements * rows_together] = {}, dy[few_elements * rows_together] = {};
  double mean_g[rows_together], mean_gx[rows_together];
  StatisticsStrip<C> s;
  s.restore(a, few.first, few.rows);
  few.turn(a.x, x);
  few.turn(a.dy, dy);
  const int64_t lane = few.first / a.geometry.statistics_per_block * a.geometry.channels + few.channel;
  double *const sums = a.sums + lane, *const products = a.products + lane;
  for_each_position<double>(few.rows, [&](auto at) {
    Doubles sum = {}, product = {};
    for (int64_t k = 0; k < few.count; ++k) {
      const Doubles centred = (load_wide(x + k * rows_together + at.i) - s.wide_mean(at.i)) - s.wide_mean_rest(at.i);
      const Doubles upstream = load_wide(dy + k * rows_together + at.i);
      sum += upstream;
      product += upstream * centred;
    }
    product *= s.exact_reciprocal(at.i);
    const Doubles weight = at.load(few.weights);
    at.store(mean_g, weight * sum / n);
    at.store(mean_gx, weight * product / n);
    const auto own = lanes_to_repair(s, at.i);  // their repair adds them
    at.store(sums, at.load(sums) + keep_lanes<double>(sum, ~own));
    at.store(products, at.load(products) + keep_lanes<double>(product, ~own));
  });
  if (!a.out) return;
  double memory[factors_size(rows_together)];
  const Factors<double> factors(memory, rows_together, 0);
  const auto of = [](const double* values) { return [values](auto at) { return at.load(values); }; };
  factors.set_affine(s, few.rows, few.weights, few.biases);
  factors.set_gradient(s, few.rows, few.weights, of(mean_g), of(mean_gx));
  for (int64_t i = 0; i < few.rows; ++i) factors.slope[i] *= factors.reciprocal[i];
  const T *source = few.of(static_cast<const T*>(a.x)), *upstream = few.of(static_cast<const T*>(a.dy));
  few.write({factors.mean, factors.weight, factors.gradient_shift, factors.slope},
            [&](const auto& at, const auto& factor) {
    const Wide<C> centred(at.load(source));
    Wide<C> v(at.load(upstream));
    for (int i = 0; i < Wide<C>::parts; ++i) {
      v.part[i] = (v.part[i] * factor(1, i) - factor(2, i)) - (centred.part[i] - factor(0, i)) * factor(3, i);
    }
    return v;
  });
}

// Calls body(rows) for the statistics [begin, end).
template <class T, class Body>
void for_each_few(const ChannelsCall& a, int64_t begin, int64_t end, const Body& body) {
  while (begin < end) {
    const FewRows<T> few(a, begin, end);
    body(few);
    begin += few.rows;
  }
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
