// Contiguous groups of few positions, and their gradient in the compute dtype: a group of one sample after the other.
#pragma once

#include <algorithm>
#include <cmath>

#include "channels/abreast.h"
#include "channels/factors.h"
#include "channels/groups_runs.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// A group of a sample: its columns of the tensor's rows, and what is stored for each of them.
template <class T>
struct Group {
  using C = Opmath<T>;
  int64_t column, offset, count;
  const double *weights, *biases;
  bool y_by_rows;
  Group(const ChannelsCall& a, int64_t statistic)
      : column(statistic % a.geometry.groups * a.geometry.count),
        offset(statistic * a.geometry.count),
        count(a.geometry.count),
        weights(a.weights_from(column)),
        biases(a.biases_from(column)),
        y_by_rows(a.geometry.y_by_rows) {}
  Doubles weight(int64_t i) const { return weights ? load(weights + i) : Doubles{} + 1.0; }
  Doubles bias(int64_t i) const { return biases ? load(biases + i) : Doubles{}; }
  // in the lanes past the end lies the next group's, which may be infinite: 0 times that is NaN
  template <class At>
  Wide<C> own_weight(const At& at) const {
    Wide<C> v;
    for (int i = 0; i < Wide<C>::parts; ++i) v.part[i] = weight(at.i + i * Lanes<double>::width);
    return keep_wide(at, v);
  }
  // the input of the activation, given x_hat
  template <class At>
  Wide<C> affine(const At& at, Wide<C> v) const {
    for (int i = 0; i < Wide<C>::parts; ++i) {
      const int64_t column = at.i + i * Lanes<double>::width;
      v.part[i] = v.part[i] * weight(column) + bias(column);
    }
    return v;
  }
  template <class At>
  EVENKEEL_INLINE Vector<C> input_by_rows(const At& at, const T* x, const ChannelStatistics<C>& s, double reciprocal) const {
    return affine(at, wide_centred(load_as_doubles<C>(at, x), s) * reciprocal).rounded();
  }
  // the same as it was for y
  template <class At>
  Vector<C> input_of_y(const At& at, const T* x, const ChannelStatistics<C>& s) const {
    const double reciprocal = s.exact_reciprocal();
    if (y_by_rows) return input_by_rows(at, x, s, reciprocal);
    const Wide<C> scale = own_weight(at) * reciprocal;
    const Wide<C> shift = Wide<C>::of([&](int64_t i) { return bias(at.i + i); }) - scale * static_cast<double>(s.mean_rest);
    return (at.load(x) - s.mean) * scale.rounded() + shift.rounded();
  }
};

// What is stored of the columns of a sample's row, in fewer than factors_size(width) doubles: the parameters of all of
// them, for all blocks of a thread; of a group the gradients led through the activation, and the sums of columns over a
// block's samples.
template <class C>
struct ColumnsOfRow {
  double* channel_weights;
  C *weight, *bias, *kept, *gradients, *products;
  explicit ColumnsOfRow(const ChannelsCall& a) {
    const ChannelsGeometry& g = a.geometry;
    channel_weights = static_cast<double*>(a.factors) + 2 * column_stride(g);  // behind sums in double
    C* at = reinterpret_cast<C*>(channel_weights + padded(g.channels));
    for (C** row : {&weight, &bias}) {
      *row = at;
      at += padded(g.width);
    }
    for (C** row : {&kept, &gradients, &products}) {
      *row = at;
      at += padded(g.count);
    }
  }
  void fill(const ChannelsCall& a) const {
    const ChannelsGeometry& g = a.geometry;
    for (int64_t i = 0; i < g.channels; ++i) channel_weights[i] = a.weight_of(i * g.per_channel);
    for_each_position<double>(g.width, [&](auto at) {
      store_rounded(at, weight, parameter_at(at, a.weight, 1));
      store_rounded(at, bias, parameter_at(at, a.bias, 0));
    });
  }
};

// Whether channels are summed by themselves, eight at a time: they fill half a vector of floats, and at most a fifth is
// summed in vain. Sums of columns are read and written for each sample. Not after SiLU, whose sums would be in double.
inline bool sums_channels(const ChannelsCall& a, int64_t channels) {
  constexpr int64_t half_vector = 8;
  const int64_t summed = ceil_divide(channels, abreast) * abreast;
  return a.geometry.per_channel >= half_vector && 4 * summed <= 5 * channels &&
         a.options.activation != Activation::silu;
}

// dx of a group, and what it adds to the gradients of the affine: sums of its channels, or of its columns over a block's
// samples.
template <class T, bool extras>
class GroupGradient {
 public:
  using C = Opmath<T>;
  using V = Vector<C>;
  GroupGradient(const ChannelsCall& a, int64_t group, double* gradients, double* products)
      : call_(a),
        count_(a.geometry.count),
        each_(a.geometry.per_channel),
        channels_(count_ / each_),
        columns_(a),
        weight_(columns_.weight + group * count_),
        bias_(columns_.bias + group * count_),
        channel_weights_(columns_.channel_weights + group * channels_),
        sums_{gradients, products},
        by_channels_(sums_channels(a, channels_)) {
    if (by_channels_) {
      for (double* sums : sums_) std::memset(sums, 0, channels_ * sizeof(double));
    } else {
      std::memset(columns_.gradients, 0, 2 * padded(count_) * sizeof(C));
    }
  }

  // next: the statistic that follows, which is elsewhere. False where floats do not hold the sums of a sample's group, or
  // its dx: that is left to be written.
  bool add(int64_t statistic, int64_t next) {
    const ChannelStatistics<C> s = restore_statistics<C>(call_, statistic);
    if (!is_own(call_, statistic, s)) return true;
    const int64_t offset = statistic * count_;
    const T *x = static_cast<const T*>(call_.x) + offset, *dy = static_cast<const T*>(call_.dy) + offset;
    const int64_t ahead = (next - statistic) * count_;
    const Group<T> group(call_, statistic);
    double sums[2];
    bool hold = true;
    with_activation_of<extras>(call_, [&](auto activation) {
      constexpr Activation known = decltype(activation)::value;
      if constexpr (known != Activation::silu) {
        if (by_channels_) return static_cast<void>(hold = add_channels<known>(group, s, x, dy, ahead, sums));
      }
      add_columns<known>(group, s, x, dy, ahead, sums);
    });
    if (!is_nan(s)) {
      lost_ |= !hold;
      if (!hold || !sums_hold<C>(sums[0], sums[1])) return false;
    }
    if (!call_.out) return true;
    T* dx = static_cast<T*>(call_.out) + offset;
    const double n = static_cast<double>(count_), reciprocal = s.exact_reciprocal();
    const double along = static_cast<double>(s.bend) * (sums[1] / n);
    const C mean_g = static_cast<C>(sums[0] / n - static_cast<double>(s.mean_rest) * reciprocal * along);
    const C slope = static_cast<C>(reciprocal * along);
    V total = {};  // not finite where a product with the weight left float's range
    const auto write = [&](const auto* upstream) {
      for_each_position<C>(count_, [&](auto at) {
        fetch_to_write(dx + at.i + ahead);
        const V centred = at.load(x) - s.mean;
        const V v = ((at.load(upstream) * at.load(weight_) - mean_g) - centred * slope) * s.reciprocal;
        total += v;
        at.store(dx, v);
      });
    };
    call_.options.activation == Activation::none ? write(dy) : write(columns_.kept);
    return sizeof(C) == sizeof(double) || is_nan(s) || std::isfinite(sum_of_lanes(as_doubles(total)));
  }

  // The channels' sums are complete. False where floats did not hold them.
  bool finish() const {
    if (!by_channels_) add_lanes_of_columns();
    return sizeof(C) == sizeof(double) || (!lost_ && all_hold(sums_[0], sums_[1], channels_));
  }

 private:
  // out of line and of values, for the registers of what is nearly always done
  template <class At>
  __attribute__((noinline)) static V input_of_y(Group<T> group, At at, const T* x, ChannelStatistics<C> s) {
    return group.input_of_y(at, x, s);
  }
  // The gradient led through the activation, which is kept. ReLU lets through what it let through to y.
  template <Activation activation, class At>
  EVENKEEL_INLINE V keep_upstream(const At& at, const Group<T>& group, const ChannelStatistics<C>& s, const T* x,
                                  V upstream, V normalized) const {
    if constexpr (activation == Activation::none) return upstream;
    const V bias = at.load(bias_);
    V input = normalized * at.load(weight_) + bias;
    if constexpr (activation == Activation::relu) {
      constexpr C much_more = C(1 << 18);  // than what roundings add to the terms
      if (any(much_more * size_of<C>(input) < size_of<C>(bias))) input = input_of_y(group, at, x, s);
    }
    upstream = through_activation<activation, C>(upstream, input);
    at.store(columns_.kept, upstream);
    return upstream;
  }

  template <Activation activation>
  void add_columns(const Group<T>& group, const ChannelStatistics<C>& s, const T* x, const T* dy, int64_t ahead,
                   double (&sums)[2]) const {
    const C rest = static_cast<C>(static_cast<double>(s.mean_rest) * s.exact_reciprocal());
    sum_terms<C>(count_, sums, [&](auto at, V(&out)[2]) {
      fetch(x + at.i + ahead);
      fetch(dy + at.i + ahead);
      const V normalized = at.keep((at.load(x) - s.mean) * s.reciprocal - rest), weight = at.load(weight_);
      const V upstream = keep_upstream<activation>(at, group, s, x, at.load(dy), normalized);
      const V along = upstream * normalized;
      at.store(columns_.gradients, at.load(columns_.gradients) + upstream);
      at.store(columns_.products, at.load(columns_.products) + along);
      out[0] = upstream * weight;
      out[1] = along * weight;
    });
  }

  // Some channels at a time, whose gradients stay near; whether floats hold their sums.
  template <Activation activation>
  bool add_channels(const Group<T>& group, const ChannelStatistics<C>& s, const T* x, const T* dy, int64_t ahead,
                    double (&sums)[2]) const {
    constexpr int64_t most = 32;
    constexpr bool is_active = activation != Activation::none;
    using Gradient = std::conditional_t<is_active, C, T>;
    const double reciprocal = s.exact_reciprocal(), mean_rest = static_cast<double>(s.mean_rest);
    const C rest = static_cast<C>(mean_rest * reciprocal);
    const Gradient* upstream;
    if constexpr (is_active) {
      upstream = columns_.kept;
    } else {
      upstream = dy;
    }
    Doubles total = {}, total_product = {};
    LaneMask<double> lost = {};
    for (int64_t first = 0; first < channels_; first += most) {
      const int64_t some = std::min(most, channels_ - first), offset = first * each_;
      if constexpr (is_active) {
        for_each_position<C>(some * each_, [&](auto at) {
          at.i += offset;
          fetch(x + at.i + ahead);
          fetch(dy + at.i + ahead);
          keep_upstream<activation>(at, group, s, x, at.load(dy), (at.load(x) - s.mean) * s.reciprocal - rest);
        });
      }
      for_each_position<double>(some, [&](auto at) __attribute__((always_inline)) {
        const auto terms_of = [&](int i) __attribute__((always_inline)) {
          const int64_t run = std::min(first + at.i + i, channels_ - 1) * each_;
          if constexpr (!is_active) {
            fetch_beginning(x + run + ahead, each_);
            fetch_beginning(dy + run + ahead, each_);
          }
          return GradientTerms<T, Activation::none, Gradient>{x + run, upstream + run, {s.mean, 0, 0}};
        };
        const SumsAbreast found = sums_abreast<false, C>(each_, terms_of);
        const Doubles gradient = at.keep(found.gradient);
        lost |= lanes_lost(gradient, at.keep(found.product));
        const Doubles product = at.keep((found.product - mean_rest * found.gradient) * reciprocal);
        const Doubles weight = at.load(channel_weights_ + first);
        total += gradient * weight;
        total_product += product * weight;
        at.store(sums_[0] + first, at.load(sums_[0] + first) + gradient);
        at.store(sums_[1] + first, at.load(sums_[1] + first) + product);
      });
    }
    sums[0] = sum_of_lanes(total);
    sums[1] = sum_of_lanes(total_product);
    return sizeof(C) == sizeof(double) || !any(lost);
  }

  void add_lanes_of_columns() const {
    constexpr int64_t longest = 16;  // additions in the compute dtype
    const ChannelsGeometry& g = call_.geometry;
    const int64_t samples = g.statistics_per_block / g.groups;
    const int64_t together = std::max<int64_t>(1, longest / samples) * Lanes<C>::width;
    for (auto [columns, out] : {std::pair{columns_.gradients, sums_[0]}, {columns_.products, sums_[1]}}) {
      if (each_ == 1) {
        std::copy_n(columns, count_, out);
        continue;
      }
      const auto lanes_of = [&](const C* own) __attribute__((always_inline)) {
        Doubles total = {};
        for (int64_t begin = 0; begin < each_; begin += together) {
          V part = {};
          for_each_position<C>(std::min(together, each_ - begin), [&](auto at) { part += at.load(own + begin); });
          total += as_doubles(part);
        }
        return total;
      };
      for (int64_t first = 0; first < channels_; first += abreast) {
        const int64_t some = std::min<int64_t>(channels_ - first, abreast);
        Doubles lanes[abreast];
        for (int64_t k = 0; k < abreast; ++k) lanes[k] = k < some ? lanes_of(columns + (first + k) * each_) : Doubles{};
        double sums[abreast];
        store(sums, sums_of_lanes(lanes));
        std::copy_n(sums, some, out + first);
      }
    }
  }

  const ChannelsCall& call_;
  const int64_t count_, each_, channels_;
  const ColumnsOfRow<C> columns_;
  const C *weight_, *bias_;
  const double* channel_weights_;
  double* const sums_[2];
  const bool by_channels_;
  bool lost_ = false;  // whether floats did not hold the sums of a sample's channels
};

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
