// Rows of a few elements, a channel each: neighbouring ones side by side, in double. They are turned, so that
// neighbouring lanes are neighbouring rows, whose factors lie side by side too.
#pragma once

#include "channels/factors.h"
#include "channels/turn.h"
#include "core/caches.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

constexpr int64_t few_elements = 16, rows_together = 32;

inline bool are_few(const ChannelsCall& a) {
  const ChannelsGeometry& g = a.geometry;
  return g.groups == g.channels && g.count <= few_elements;
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
  // Element k of row i is at k * rows + i.
  class Turned {
   public:
    Turned(const FewRows& few, const void* tensor) : rows_(few.rows) {
      const int64_t elements = few.rows * few.count;
      turn(few.of(static_cast<const T*>(tensor)), turned_, sizeof(T), 1, few.rows, few.count);
      std::memset(turned_ + elements * sizeof(T), 0, past * sizeof(T));
      values_ = widen(reinterpret_cast<const T*>(turned_), wide_, elements + past);
    }
    Doubles operator()(int64_t k, int64_t row) const { return load_wide(values_ + k * rows_ + row); }

   private:
    static constexpr int64_t past = Lanes<float>::width;  // the last vector may reach so far, and takes 0 there
    static constexpr int64_t room = few_elements * rows_together + past;
    const int64_t rows_;
    alignas(cache_line) unsigned char turned_[room * sizeof(T)];
    C wide_[room];
    const C* values_;
  };
  // the activation of result(k, row) of neighbouring rows
  template <Activation activation>
  void write(const auto& result) const {
    alignas(cache_line) unsigned char turned[few_elements * rows_together * sizeof(T)];
    for (int64_t k = 0; k < count; ++k) {
      for_each_position<C>(rows, [&](auto at) {
        Wide<C> v;
        for (int i = 0; i < Wide<C>::parts; ++i) v.part[i] = result(k, at.i + i * Lanes<double>::width);
        at.store(reinterpret_cast<T*>(turned) + k * rows, activate<activation, C>(v.rounded()));
      });
    }
    turn(turned, of(static_cast<T*>(call.out)), sizeof(T), 1, count, rows);
  }
};

template <Activation activation, class T>
void measure_few(const FewRows<T>& few) {
  using C = Opmath<T>;
  const ChannelsCall& a = few.call;
  const typename FewRows<T>::Turned x(few, a.x);
  double shifts[rows_together], sums[rows_together], squares[rows_together], variances[rows_together];
  const auto sum_about = [&](const auto& at, Doubles shift) {
    Doubles sum = {}, square = {};
    for (int64_t k = 0; k < few.count; ++k) {
      const Doubles d = x(k, at.i) - shift;
      sum += d;
      square += d * d;
    }
    at.store(shifts, shift);
    at.store(sums, sum);
    at.store(squares, square);
    return shift + sum / static_cast<double>(few.count);
  };
  for_each_position<double>(few.rows, [&](auto at) {
    const Doubles mean = sum_about(at, x(0, at.i));
    if constexpr (sizeof(C) == sizeof(double)) sum_about(at, mean);
  });
  StatisticsStrip<C> s;
  s.conclude(a, static_cast<double>(few.count), few.rows, shifts, sums, squares, variances);
  s.save(a, few.first, few.rows);
  for (int64_t i = 0; i < few.rows; ++i) static_cast<C*>(a.variance)[few.first + i] = static_cast<C>(variances[i]);
  double memory[factors_size(rows_together)];
  if (few.rows < rows_together) std::memset(memory, 0, sizeof(memory));  // in lanes past the end
  const Factors<double> factors(memory, rows_together, 0);
  factors.set_affine(s, few.rows, few.weights, few.biases);
  few.template write<activation>([&](int64_t k, int64_t i) {
    return (x(k, i) - load(factors.mean + i)) * load(factors.scale + i) + load(factors.shift + i);
  });
}

// dx of the rows, and what they add to the gradients of the affine
template <Activation activation, class T>
void sum_few(const FewRows<T>& few) {
  using C = Opmath<T>;
  constexpr bool is_active = activation != Activation::none;
  const ChannelsCall& a = few.call;
  const double n = static_cast<double>(few.count);
  const typename FewRows<T>::Turned x(few, a.x), dy(few, a.dy);
  double mean_g[rows_together], mean_gx[rows_together];
  double kept[is_active ? few_elements * rows_together : 1];  // gradients led through the activation
  StatisticsStrip<C> s;
  s.restore(a, few.first, few.rows);
  const int64_t lane = few.first / a.geometry.statistics_per_block * a.geometry.channels + few.channel;
  double *const sums = a.sums + lane, *const products = a.products + lane;
  for_each_position<double>(few.rows, [&](auto at) {
    Doubles sum = {}, product = {};
    for (int64_t k = 0; k < few.count; ++k) {
      const Doubles centred = (x(k, at.i) - s.wide_mean(at.i)) - s.wide_mean_rest(at.i);
      Doubles upstream = dy(k, at.i);
      if constexpr (is_active) {
        const Doubles input = centred * s.exact_reciprocal(at.i) * at.load(few.weights) + at.load(few.biases);
        upstream = through_activation<activation, double>(upstream, input);
        store(kept + k * rows_together + at.i, upstream);
      }
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
  if (few.rows < rows_together) std::memset(memory, 0, sizeof(memory));  // in lanes past the end
  const Factors<double> factors(memory, rows_together, 0);
  const auto of = [](const double* values) { return [values](auto at) { return at.load(values); }; };
  factors.set_affine(s, few.rows, few.weights, few.biases);
  factors.set_gradient(s, few.rows, few.weights, of(mean_g), of(mean_gx));
  for (int64_t i = 0; i < few.rows; ++i) factors.slope[i] *= factors.reciprocal[i];
  few.template write<Activation::none>([&](int64_t k, int64_t i) {
    const Doubles upstream = is_active ? load(kept + k * rows_together + i) : dy(k, i);
    return (upstream * load(factors.weight + i) - load(factors.gradient_shift + i)) -
           (x(k, i) - load(factors.mean + i)) * load(factors.slope + i);
  });
}

// Calls body(activation, rows) for the statistics [begin, end).
template <class T, class Body>
void for_each_few(const ChannelsCall& a, int64_t begin, int64_t end, const Body& body) {
  with_activation(a.options.activation, [&](auto activation) {
    for (int64_t first = begin; first < end;) {
      const FewRows<T> few(a, first, end);
      body(activation, few);
      first += few.rows;
    }
  });
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
