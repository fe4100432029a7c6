// The channel pattern over runs of positions: every run belongs to one channel. Compiled once per instruction set.
//
// The differences from an item's first elements' mean and their squares are summed in one pass; where that was no fair
// guess of the item's mean, in a second pass about a better one, while the item is in cache. So a mean of 1e4 with a
// spread of 0.01 costs no accuracy, a constant channel gives exactly 0, and memory is read once. The items of a
// statistic are merged in double.
#include "channels_common.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

// The runs that make up a statistic: run i begins at base + i * stride and belongs to channel + i * next_channel.
struct Runs {
  int64_t base, length, stride, channel, next_channel;
};

Runs runs_of(const ChannelsGeometry& g, int64_t statistic) {
  const int64_t p = g.positions;
  if (g.groups == 0) return {statistic * p, p, g.channels * p, statistic, 0};
  const int64_t share = g.channels / g.groups;
  return {statistic * share * p, p, p, statistic % g.groups * share, 1};
}

// Calls body(offset, length, channel) for the runs, or parts of runs, between two positions of a statistic.
template <class Body>
void for_each_run(const Runs& runs, int64_t begin, int64_t end, const Body& body) {
  while (begin < end) {
    const int64_t run = begin / runs.length, at = begin % runs.length;
    const int64_t rest = runs.length - at, count = rest < end - begin ? rest : end - begin;
    body(runs.base + run * runs.stride + at, count, runs.channel + run * runs.next_channel);
    begin += count;
  }
}

// The mask's run for that of x from an offset on.
template <bool extras>
ValidLanes valid_lanes(const ChannelsCall& a, int64_t offset) {
  if (!extras || !a.mask) return {nullptr};
  const ChannelsGeometry& g = a.geometry;
  return {a.mask + offset / (g.channels * g.positions) * g.positions + offset % g.positions};
}

struct Span {
  int64_t statistic, begin, end;
};

Span measure_span(const ChannelsGeometry& g, int64_t item) {
  const int64_t begin = item % g.measure_items * g.item_size, end = begin + g.item_size;
  return {item / g.measure_items, begin, end < g.count ? end : g.count};
}

// A first guess of the mean of [begin, end): that of a few elements, or the first valid one.
template <class T, bool extras>
typename Compute<T>::type guess_mean(const ChannelsCall& a, const Runs& runs, int64_t begin, int64_t end) {
  using C = typename Compute<T>::type;
  const T* x = static_cast<const T*>(a.x);
  constexpr int64_t few = 16;
  double found = 0;
  if (extras && a.mask) {
    bool searching = true;
    for_each_run(runs, begin, end, [&](int64_t offset, int64_t length, int64_t) {
      const uint8_t* mask = valid_lanes<extras>(a, offset).mask;
      for (int64_t i = 0; searching && i < length; ++i) {
        if (!mask[i]) continue;
        found = to_double(x[offset + i]);
        searching = false;
      }
    });
    return static_cast<C>(found);
  }
  const int64_t stop = begin + few < end ? begin + few : end;
  for_each_run(runs, begin, stop, [&](int64_t offset, int64_t length, int64_t) {
    for (int64_t i = 0; i < length; ++i) found += to_double(x[offset + i]);
  });
  return static_cast<C>(found / static_cast<double>(stop - begin));
}

template <class T, bool extras>
void measure_one(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  using V = typename Lanes<C>::vector;
  const Span span = measure_span(a.geometry, item);
  Runs runs = runs_of(a.geometry, span.statistic);
  if (a.geometry.groups && !a.mask) runs.length = a.geometry.count;  // a group lies in one piece
  const T* x = static_cast<const T*>(a.x);
  double count = static_cast<double>(span.end - span.begin);
  if (extras && a.mask) {
    count = 0;
    for_each_run(runs, span.begin, span.end, [&](int64_t offset, int64_t length, int64_t) {
      count += static_cast<double>(valid_lanes<extras>(a, offset).count(length));
    });
  }
  double* partial = a.partial + (item - a.first_item) * 4;
  partial[3] = count;
  if (count == 0) return;
  C shift = guess_mean<T, extras>(a, runs, span.begin, span.end);
  double sum, square;
  const auto pass = [&] {
    sum = square = 0;
    for_each_run(runs, span.begin, span.end, [&](int64_t offset, int64_t length, int64_t) {
      const ValidLanes valid = valid_lanes<extras>(a, offset);
      double sums[2];
      sum_terms<C>(length, sums, [&](auto at, V(&out)[2]) {
        const V d = extras ? valid.keep(at, at.load(x + offset) - shift) : at.keep(at.load(x + offset) - shift);
        out[0] = d;
        out[1] = d * d;
      });
      sum += sums[0];
      square += sums[1];
    });
  };
  pass();
  if (!is_fair_shift(count, sum, square)) {
    shift = static_cast<C>(static_cast<double>(shift) + sum / count);
    pass();
  }
  partial[0] = static_cast<double>(shift);
  partial[1] = sum;
  partial[2] = square;
}

template <class T, bool>
void merge_one(const ChannelsCall& a, int64_t statistic) {
  MergedSums merged;
  const int64_t items = a.geometry.measure_items;
  for (int64_t item = statistic * items; item < (statistic + 1) * items; ++item) {
    const double* partial = a.partial + (item - a.first_item) * 4;
    merged.add(partial[3], partial[0], partial[1], partial[2]);
  }
  save_merged<typename Compute<T>::type>(a, statistic, merged);
}

template <class T, bool extras>
void write_one(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  using V = typename Lanes<C>::vector;
  const Span span = measure_span(a.geometry, item);
  const ChannelStatistics<C> s = restore_statistics<C>(a, span.statistic);
  const C *weights = static_cast<const C*>(a.weight), *biases = static_cast<const C*>(a.bias);
  const Activation activation = a.activation;
  for_each_run(runs_of(a.geometry, span.statistic), span.begin, span.end,
               [&](int64_t offset, int64_t length, int64_t channel) {
    const T* x = static_cast<const T*>(a.x) + offset;
    T* y = static_cast<T*>(a.out) + offset;
    const C weight = weights ? weights[channel] : 1, bias = biases ? biases[channel] : 0;
    const C scale = scale_of(s, static_cast<double>(weight));
    const ValidLanes valid = valid_lanes<extras>(a, offset);
    const auto finish = [&](auto at, V v) {
      if constexpr (extras) v = valid.keep(at, activate<C>(v, activation));
      at.store(y, v);
    };
    if (a.remembered && may_cancel(s, weight, bias)) {
      const double mean = static_cast<double>(s.mean), rest = static_cast<double>(s.mean_rest);
      for_each_position<C>(length, [&](auto at) {
        Wide<C> v(at.load(x));
        for (auto& part : v.part) part = ((part - mean) - rest) * double(scale) + double(bias);
        finish(at, v.rounded());
      });
    } else if (biases) {
      for_each_position<C>(length, [&](auto at) { finish(at, centred_at(at, x, s) * scale + bias); });
    } else {
      for_each_position<C>(length, [&](auto at) { finish(at, centred_at(at, x, s) * scale); });
    }
  });
}

// An item of the backward is one part of one run: the sums are kept for each channel of each sample.
struct Part {
  int64_t statistic, channel, offset, length;
};

Part part_of(const ChannelsGeometry& g, int64_t item) {
  const int64_t statistic = item / g.sum_items, run = item % g.sum_items / g.parts;
  const int64_t begin = item % g.parts * g.item_size, rest = g.positions - begin;
  const Runs runs = runs_of(g, statistic);
  return {statistic, runs.channel + run * runs.next_channel, runs.base + run * runs.stride + begin,
          rest < g.item_size ? rest : g.item_size};
}

// The upstream gradient of a part, led through the activation, 0 where it is not valid.
template <class T, bool extras>
class Upstream {
 public:
  using C = typename Compute<T>::type;
  Upstream(const ChannelsCall& a, const Part& part, const ChannelStatistics<C>& s)
      : dy_(static_cast<const T*>(a.dy) + part.offset),
        valid_(valid_lanes<extras>(a, part.offset)),
        activation_(a.activation),
        exactly_(has_few_elements(a.geometry, a.remembered)) {
    const C* weight = static_cast<const C*>(a.weight);
    scale_ = scale_of(s, weight ? static_cast<double>(weight[part.channel]) : 1.0);
    bias_ = a.bias ? static_cast<const C*>(a.bias)[part.channel] : 0;
  }
  // at a position where the differences from the mean are `centred`
  template <class At>
  typename Lanes<C>::vector at(const At& at, typename Lanes<C>::vector centred) const {
    const auto upstream = at.load(dy_);
    if constexpr (!extras) return upstream;
    if (activation_ == Activation::none) return keep(at, upstream);
    using V = typename Lanes<C>::vector;
    return keep(at, through_activation_of<C>(upstream, centred, V{} + scale_, V{} + bias_, activation_, exactly_));
  }
  template <class At>
  typename Lanes<C>::vector keep(const At& at, typename Lanes<C>::vector v) const {
    if constexpr (!extras) return v;
    return valid_.keep(at, v);
  }

 private:
  const T* dy_;
  ValidLanes valid_;
  Activation activation_;
  bool exactly_;
  C scale_, bias_;
};

// In double: terms of both signs cancel, and memory is the bound all the same. Lanes past the end have dy = 0.
template <class T, bool extras>
void sum_one(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const Part part = part_of(a.geometry, item);
  const ChannelStatistics<C> s = restore_statistics<C>(a, part.statistic);
  const T* x = static_cast<const T*>(a.x) + part.offset;
  const Upstream<T, extras> upstream(a, part, s);
  constexpr int parts = Wide<C>::parts;
  Doubles gradient[parts] = {}, product[parts] = {};
  for_each_position<C>(part.length, [&](auto at) {
    const auto centred = upstream.keep(at, centred_at(at, x, s));
    const Wide<C> wide(upstream.at(at, centred)), difference(centred);
    for (int i = 0; i < parts; ++i) {
      gradient[i] += wide.part[i];
      product[i] += wide.part[i] * difference.part[i];
    }
  });
  double* partial = a.partial + (item - a.first_item) * 2;
  partial[0] = partial[1] = 0;
  for (int i = 0; i < parts; ++i) {
    partial[0] += sum_of_lanes(gradient[i]);
    partial[1] += sum_of_lanes(product[i]);
  }
}

template <class T, bool>
void merge_sums_one(const ChannelsCall& a, int64_t statistic) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const C* weight = static_cast<const C*>(a.weight);
  const int64_t runs = g.sum_items / g.parts, first = statistic * g.sum_items;
  const double reciprocal = static_cast<double>(restore_statistics<C>(a, statistic).reciprocal);
  double mean_g = 0, mean_gx = 0;
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t lane = g.groups ? statistic * runs + run : run * g.channels + statistic;
    double* sums = a.sums + lane * 2;
    sums[0] = sums[1] = 0;
    for (int64_t item = first + run * g.parts; item < first + (run + 1) * g.parts; ++item) {
      sums[0] += a.partial[(item - a.first_item) * 2];
      sums[1] += a.partial[(item - a.first_item) * 2 + 1];
    }
    sums[1] *= reciprocal;
    const double w = weight ? static_cast<double>(weight[lane % g.channels]) : 1;
    mean_g += w * sums[0];
    mean_gx += w * sums[1];
  }
  const double n = count_of(a, statistic);
  a.means[statistic * 2] = mean_g / n;
  a.means[statistic * 2 + 1] = mean_gx / n;
}

// dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale with g = dy * weight
template <class T, bool extras>
void write_gradient_one(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const Part part = part_of(a.geometry, item);
  const ChannelStatistics<C> s = restore_statistics<C>(a, part.statistic);
  const T* x = static_cast<const T*>(a.x) + part.offset;
  const Upstream<T, extras> upstream(a, part, s);
  T* dx = static_cast<T*>(a.out) + part.offset;
  const C* weight = static_cast<const C*>(a.weight);
  const C w = weight ? weight[part.channel] : 1;
  if (a.remembered) {
    const C scale = scale_of(s, static_cast<double>(w));
    for_each_position<C>(part.length, [&](auto at) {
      at.store(dx, upstream.at(at, centred_at(at, x, s)) * scale);
    });
    return;
  }
  using V = typename Lanes<C>::vector;
  const V weights = V{} + w, reciprocal = V{} + s.reciprocal;
  const V mean_g = V{} + static_cast<C>(a.means[part.statistic * 2]);
  const V slope = V{} + slope_of(s, a.means[part.statistic * 2 + 1]);
  const bool exactly = has_few_elements(a.geometry, a.remembered);
  for_each_position<C>(part.length, [&](auto at) {
    const V centred = centred_at(at, x, s);
    const V v = project<C>(upstream.at(at, centred), centred, weights, mean_g, slope, reciprocal, exactly);
    at.store(dx, upstream.keep(at, v));
  });
}

}  // namespace
}  // namespace EVENKEEL_ISA
}  // namespace evenkeel

EVENKEEL_CHANNELS_WALK(channels_first_kernels_)
