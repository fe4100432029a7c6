// Channels as planes, backward: dx.
#pragma once

#include "channels/planes_sums.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// dx of a run, or of a part of one; `ahead` elements further is what will be read next. gradient(at, x) is dx.
template <class T, class Gradient>
void write_gradient_run(const ChannelsCall& a, int64_t offset, int64_t length, int64_t ahead, const Gradient& gradient) {
  const T *x = static_cast<const T*>(a.x) + offset, *dy = static_cast<const T*>(a.dy) + offset;
  T* dx = static_cast<T*>(a.out) + offset;
  for_each_output<Opmath<T>>(dx, length, [&](auto at) __attribute__((always_inline)) {
    if (ahead) {
      fetch(x + at.i + ahead);
      fetch(dy + at.i + ahead);
    }
    at.store(dx, gradient(at, at.load(x)));
  }, a.streamed);
}

// dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale with g = dy * weight
template <class T, bool extras>
void write_gradient_part(const ChannelsCall& a, const Part& part,
                         const ChannelStatistics<Opmath<T>>& s) {
  using C = Opmath<T>;
  const T* x = static_cast<const T*>(a.x) + part.offset;
  T* dx = static_cast<T*>(a.out) + part.offset;
  const double w = a.weight_of(part.channel);
  with_upstream<T, extras>(a, part, s, [&](auto, const auto& upstream) {
    if (a.remembered) {
      const C scale = scale_of(s, w);
      const auto write = [&](const auto& gradient) {
        for_each_position<C>(part.length, [&](auto at) {
          at.store(dx, upstream.keep(at, gradient(at, upstream.keep(at, at.load(x))) * scale));
        });
      };
      if (upstream.exactly()) return write([&](auto at, auto value) { return upstream.wide(at, value).rounded(); });
      return write([&](auto at, auto value) { return upstream.at(at, value); });
    }
    const double wide_mean_g = a.means[part.statistic * 2], mean_gx = a.means[part.statistic * 2 + 1];
    if (upstream.exactly()) {
      const double along = exact_slope_of(s, mean_gx), factor = s.exact_reciprocal();
      for_each_position<C>(part.length, [&](auto at) {
        const auto value = upstream.keep(at, at.load(x));
        const Wide<C> centred = wide_centred(Wide<C>(value), s);
        Wide<C> v = upstream.wide(at, value);
        for (int i = 0; i < Wide<C>::parts; ++i) {
          v.part[i] = ((v.part[i] * w - wide_mean_g) - centred.part[i] * along) * factor;
        }
        at.store(dx, upstream.keep(at, v.rounded()));
      });
      return;
    }
    const Projection<C> project(s, w, wide_mean_g, mean_gx);
    const auto write = [&](const auto& gradient) {
      write_gradient_run<T>(a, part.offset, part.length, a.together * fetched_ahead(a, false), [&](auto at, auto read) {
        const auto value = upstream.keep(at, read);
        return upstream.keep(at, project(gradient(at, value), value));
      });
    };
    if (const C* kept = kept_at<C>(a, part.place)) return write([&](auto at, auto) { return at.load(kept); });
    write([&](auto at, auto value) { return upstream.at(at, value); });
  });
}

// Whether dx is that of whole runs and of measured statistics alone, in the compute dtype.
template <bool extras>
bool has_whole_runs(const ChannelsCall& a) {
  return (!extras || is_plain(a)) && !a.remembered && a.geometry.parts == 1;
}

// dx of runs that follow each other, of gradients from `upstream` on; `ahead` elements further is what will be read next.
// project(factors, gradient, x) is dx.
template <class T, int K, class Gradient, class Project>
void write_gradient_runs(const ChannelsCall& a, int64_t offset, int64_t runs, int64_t ahead, const Gradient* upstream,
                         const Opmath<T>* const (&factors)[K], const Project& project) {
  const T *x = static_cast<const T*>(a.x) + offset, *dy = static_cast<const T*>(a.dy) + offset;
  T* dx = static_cast<T*>(a.out) + offset;
  walk_runs<Opmath<T>>(a.geometry, a.streamed, dx, runs, 0, factors, [&](const auto& at, const Vector<Opmath<T>>(&own)[K])
      __attribute__((always_inline)) {
    if (ahead) {
      fetch(x + at.i + ahead);
      fetch(dy + at.i + ahead);
    }
    at.store(dx, project(own, at.load(upstream), at.load(x)));
  });
}

// Runs of a group, from one on: its channels differ in their weights alone, and in what an activation takes.
template <Activation activation, class T, class Gradient>
void write_group_gradient(const ChannelsCall& a, int64_t statistic, int64_t first, int64_t runs,
                          const Gradient* upstream) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const ChannelStatistics<C> s = restore_statistics<C>(a, statistic);
  const Projection<C> project(s, 1, a.means[statistic * 2], a.means[statistic * 2 + 1]);
  const int64_t channel = statistic % g.groups * g.sum_items + first;
  constexpr int K = activation == Activation::none ? 1 : 2;
  const MeasuredAffines<C> affines(a, channel, runs, s);
  const C* factors[K] = {affines.scale};
  if constexpr (K > 1) factors[1] = affines.shift;
  const int64_t offset = (statistic * g.sum_items + first) * g.positions;
  write_gradient_runs<T, K>(a, offset, runs, fetched_ahead(a, false), upstream, factors,
                            [&](const auto& own, auto gradient, auto x) {
    if constexpr (K > 1) gradient = through_activation<activation, C>(gradient, (x - s.mean) * own[0] + own[1]);
    return project(own[0], gradient, x);
  });
}

// The runs of a channel in so many samples, from one on, of gradients from `upstream` on, `apart` elements from sample to
// sample.
template <Activation activation, class T, class Gradient>
void write_channel_gradient(const ChannelsCall& a, int64_t channel, int64_t first, int64_t samples,
                            const Gradient* upstream, int64_t apart) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const ChannelStatistics<C> s = restore_statistics<C>(a, channel);
  const double weight = a.weight_of(channel);
  const Projection<C> project(s, weight, a.means[channel * 2], a.means[channel * 2 + 1]);
  const Affine<C> affine(s, weight, a.bias_of(channel));
  const int64_t ahead = fetched_ahead(a, false);
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t offset = ((first + i) * g.channels + channel) * g.positions;
    const Gradient* const own = upstream + i * apart;
    write_gradient_run<T>(a, offset, g.positions, ahead, [&](auto at, auto x) __attribute__((always_inline)) {
      return project(through_activation<activation, C>(at.load(own), affine(x)), x);
    });
  }
}

// Statistics of neighbouring channels, sample by sample: in memory their runs follow each other.
template <class T, bool extras>
void write_gradients_together(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const int64_t first = begin / g.sum_items, count = end / g.sum_items - first;
  if (!has_whole_runs<extras>(a)) {
    for (int64_t sample = 0; sample < g.outer; ++sample) {
      for (int64_t i = first; i < first + count; ++i) {
        const Part part{i, i, (sample * g.channels + i) * g.positions, g.positions, sample * g.positions};
        write_gradient_part<T, extras>(a, part, restore_statistics<C>(a, i));
      }
    }
    return;
  }
  with_activation_of<extras>(a, [&](auto activation) {
    constexpr int K = decltype(activation)::value == Activation::none ? 5 : 6;
    double memory[factors_size(most_together)];
    const Factors<C> own(memory, count, 0);
    StatisticsStrip<C> s;
    s.restore(a, first, count);
    own.set_affine(s, count, a.weights_from(first), a.biases_from(first));
    double mean_g[most_together], mean_gx[most_together];
    for (int64_t i = 0; i < count; ++i) {
      mean_g[i] = a.means[2 * (first + i)];
      mean_gx[i] = a.means[2 * (first + i) + 1];
    }
    own.set_gradient(s, count, a.weights_from(first), [&](auto at) { return at.load(mean_g); },
                     [&](auto at) { return at.load(mean_gx); });
    // the reciprocal as it is saved: that of write_channel_gradient
    const C* factors[K] = {own.mean, s.reciprocal, own.weight, own.gradient_shift, own.slope};
    if constexpr (K > 5) factors[5] = own.shift;
    for (int64_t sample = 0; sample < g.outer; ++sample) {
      const int64_t offset = (sample * g.channels + first) * g.positions;
      const T* const dy = static_cast<const T*>(a.dy) + offset;
      write_gradient_runs<T, K>(a, offset, count, count * g.positions, dy, factors,
                                [](const auto& own, auto dy, auto x) {
        const auto centred = x - own[0];
        if constexpr (K > 5) dy = through_activation<decltype(activation)::value, C>(dy, centred * own[2] + own[5]);
        return (dy * own[2] - own[3]) - (centred * own[1]) * own[4];
      });
    }
  });
}

template <class T, bool extras>
void write_gradient_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  if (a.together > 1) return write_gradients_together<T, extras>(a, begin, end);
  if (!has_whole_runs<extras>(a)) {
    for_each_part<C>(a, begin, end, [&](int64_t, const Part& part, const ChannelStatistics<C>& s) {
      write_gradient_part<T, extras>(a, part, s);
    });
    return;
  }
  with_activation_of<extras>(a, [&](auto activation) {
    for (int64_t runs; begin < end; begin += runs) {
      const int64_t statistic = begin / g.sum_items, first = begin - statistic * g.sum_items;
      runs = std::min({end - begin, g.sum_items - first, most_together});
      if constexpr (decltype(activation)::value == Activation::silu) {
        if (const C* const kept = kept_at<C>(a, first * g.positions)) {
          g.groups ? write_group_gradient<Activation::none, T>(a, statistic, first, runs, kept)
                   : write_channel_gradient<Activation::none, T>(a, statistic, first, runs, kept, g.positions);
          continue;
        }
      }
      const int64_t run = g.groups ? begin : first * g.channels + statistic;
      const T* const dy = static_cast<const T*>(a.dy) + run * g.positions;
      g.groups ? write_group_gradient<decltype(activation)::value, T>(a, statistic, first, runs, dy)
               : write_channel_gradient<decltype(activation)::value, T>(a, statistic, first, runs, dy,
                                                                        g.channels * g.positions);
    }
  });
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
