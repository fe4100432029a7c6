// Channels as planes, backward with remembered statistics: the sums and dx in one pass, in the order of memory.
#pragma once

#include "channels/planes_sums.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// Runs of neighbouring channels that are summed at once, each as it would be among others: how many there are depends on
// the threads.
template <class T, Activation activation, bool is_precise>
class RememberedRuns {
 public:
  using C = Opmath<T>;
  using V = Vector<C>;
  static constexpr bool is_active = activation != Activation::none;
  RememberedRuns(const ChannelsCall& a, int64_t first, int64_t count)
      : call_(a), length_(a.geometry.positions), first_(first), count_(static_cast<int>(count)) {}

  // Run i has the statistics of a channel.
  void set(int i, int64_t channel) {
    const ChannelStatistics<C> s = restore_statistics<C>(call_, channel);
    const double weight = call_.weight_of(channel), exact = s.exact_reciprocal();
    scale_[i] = static_cast<C>(exact * weight);
    reciprocal_[i] = exact;
    mean_[i] = s.mean;
    mean_rest_[i] = static_cast<double>(s.mean_rest);
    if constexpr (is_active) {
      const double bias = call_.bias_of(channel);
      shift_[i] = Affine<C>(s, weight, bias).shift;
      cancels_[i] = may_cancel(s, weight, bias);
      any_cancels_ |= cancels_[i];
      if constexpr (is_precise) input_[i] = {s.exact_mean(), exact * weight, bias};
    }
  }
  // Calls again(i) for the runs of which floats do not hold the sums, or what enters the activation. Flat: calls of the
  // activation took up to twice as long.
  template <class Again>
  __attribute__((flatten)) void sum(const Again& again) const {
    constexpr int64_t few = 32;  // terms, whose lanes may be added in floats
    const auto terms_of = [&](int i) __attribute__((always_inline)) {
      const Affine<C> affine{mean_[i], scale_[i], is_active ? shift_[i] : C(0)};
      return Terms{{x(i), dy(i), affine}, input_ + (is_precise ? i : 0), dx(i), scale_[i]};
    };
    const auto [gradient, product] = is_active || length_ > few ? sums_abreast<true, C>(length_, terms_of, count_)
                                                                : sums_abreast<is_active, C>(length_, terms_of, count_);
    save(gradient, about_exact_mean(product, load(mean_rest_), gradient));
    double sums[2][abreast];
    store(sums[0], gradient);
    store(sums[1], product);
    if (!any_cancels_ && (sizeof(C) == sizeof(double) || all_hold(sums[0], sums[1], abreast))) return;
    for (int i = 0; i < count_; ++i) {
      if ((is_active && cancels_[i]) || !sums_hold<C>(sums[0][i], sums[1][i])) again(i);
    }
  }

 private:
  // What enters the activation, of doubles.
  struct Input {
    double mean, scale, bias;
    EVENKEEL_INLINE Wide<C> operator()(V x) const { return (Wide<C>(x) - mean) * scale + bias; }
  };
  // A run's terms, which write its dx.
  struct Terms {
    const GradientTerms<T, activation> terms;
    const Input* const input;
    T* const dx;
    const C scale;
    template <class At>
    EVENKEEL_INLINE void operator()(const At& at, V (&out)[2]) const {
      if constexpr (is_precise) {
        const V value = at.load(terms.x);
        out[0] = at.load(terms.dy) * precise_slope_of_silu((*input)(value).part);
        out[1] = out[0] * (value - terms.affine.mean);
      } else {
        terms(at, out);
      }
      if (dx) at.store(dx, out[0] * scale);
    }
  };

  // behind the last one it stands once more
  EVENKEEL_INLINE int64_t offset(int i) const { return (first_ + std::min(i, count_ - 1)) * length_; }
  EVENKEEL_INLINE const T* x(int i) const { return static_cast<const T*>(call_.x) + offset(i); }
  EVENKEEL_INLINE const T* dy(int i) const { return static_cast<const T*>(call_.dy) + offset(i); }
  EVENKEEL_INLINE T* dx(int i) const { return call_.out ? static_cast<T*>(call_.out) + offset(i) : nullptr; }
  void save(Doubles gradient, Doubles product) const {
    double sums[2][abreast];
    store(sums[0], gradient);
    store(sums[1], product * load(reciprocal_));
    std::copy_n(sums[0], count_, call_.sums + first_);
    std::copy_n(sums[1], count_, call_.products + first_);
  }

  const ChannelsCall& call_;
  const int64_t length_, first_;
  const int count_;
  bool any_cancels_ = false, cancels_[abreast];
  C mean_[abreast], scale_[abreast], shift_[abreast];
  double mean_rest_[abreast], reciprocal_[abreast];
  Input input_[is_precise ? abreast : 1];
};

template <class T, bool extras>
void sum_remembered(const ChannelsCall& a, int64_t begin, int64_t end) {
  const ChannelsGeometry& g = a.geometry;
  const bool together = !a.mask && sums_are_short(a);
  const auto following = [&](int64_t channel) { return channel + 1 == g.channels ? 0 : channel + 1; };
  const auto alone = [&](int64_t run, int64_t channel) __attribute__((noinline)) {
    const auto s = restore_statistics<Opmath<T>>(a, channel);
    double sums[2];
    sum_part<T, extras>(a, {channel, channel, run * g.positions, g.positions, 0}, s, sums);
    a.sums[run] = sums[0];
    a.products[run] = sums[1] * s.exact_reciprocal();
  };
  const auto walk = [&](auto known, auto precisely) {
    constexpr Activation activation = decltype(known)::value;
    int64_t channel = begin % g.channels;
    if (!together) {
      for (int64_t run = begin; run < end; ++run, channel = following(channel)) alone(run, channel);
      return;
    }
    for (int64_t run = begin; run < end; run += abreast) {
      RememberedRuns<T, activation, decltype(precisely)::value> runs(a, run, std::min<int64_t>(abreast, end - run));
      int64_t channels[abreast];
      for (int i = 0; i < abreast; ++i) {
        channels[i] = channel;
        runs.set(i, channel);
        if (run + i + 1 < end) channel = following(channel);
      }
      runs.sum([&](int i) { alone(run + i, channels[i]); });
    }
  };
  with_activation_of<extras>(a, [&](auto known) {
    if constexpr (decltype(known)::value == Activation::silu && std::is_same_v<T, float>) {
      if (has_precise_slope(a)) return walk(known, std::true_type{});
    }
    walk(known, std::false_type{});
  });
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
