// The channel pattern over runs of positions: every run belongs to one channel. Compiled once per instruction set.
//
// An item is read twice while it is in cache: for its mean, and for the differences from that mean and their squares.
// So a mean of 1e4 with a spread of 0.01 costs no accuracy, a constant channel gives exactly 0, and memory is read
// once. The items of a statistic are merged in double.
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

struct Span {
  int64_t statistic, begin, end;
};

Span measure_span(const ChannelsGeometry& g, int64_t item) {
  const int64_t begin = item % g.measure_items * g.item_size, end = begin + g.item_size;
  return {item / g.measure_items, begin, end < g.count ? end : g.count};
}

template <class T>
void measure_item(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  using V = typename Lanes<C>::vector;
  const Span span = measure_span(a.geometry, item);
  Runs runs = runs_of(a.geometry, span.statistic);
  if (a.geometry.groups) runs.length = a.geometry.count;  // a group lies in one piece
  const T* x = static_cast<const T*>(a.x);
  const double count = static_cast<double>(span.end - span.begin);
  C first = 0;
  for_each_run(runs, span.begin, span.begin + 1, [&](int64_t offset, int64_t, int64_t) {
    first = static_cast<C>(to_double(x[offset]));
  });
  double total = 0, sum = 0, square = 0;
  for_each_run(runs, span.begin, span.end, [&](int64_t offset, int64_t length, int64_t) {
    double sums[1];
    sum_terms<C>(length, sums, [&](auto at, V(&out)[1]) { out[0] = at.keep(at.load(x + offset) - first); });
    total += sums[0];
  });
  const C shift = static_cast<C>(static_cast<double>(first) + total / count);
  for_each_run(runs, span.begin, span.end, [&](int64_t offset, int64_t length, int64_t) {
    double sums[2];
    sum_terms<C>(length, sums, [&](auto at, V(&out)[2]) {
      const V d = at.keep(at.load(x + offset) - shift);
      out[0] = d;
      out[1] = d * d;
    });
    sum += sums[0];
    square += sums[1];
  });
  double* partial = a.partial + (item - a.first_item) * 3;
  partial[0] = static_cast<double>(shift);
  partial[1] = sum;
  partial[2] = square;
}

template <class C>
void merge_statistic(const ChannelsCall& a, int64_t statistic) {
  MergedSums merged;
  const int64_t items = a.geometry.measure_items;
  for (int64_t item = statistic * items; item < (statistic + 1) * items; ++item) {
    const double* partial = a.partial + (item - a.first_item) * 3;
    const Span span = measure_span(a.geometry, item);
    merged.add(static_cast<double>(span.end - span.begin), partial[0], partial[1], partial[2]);
  }
  save_merged<C>(a, statistic, merged);
}

template <class T>
void write_item(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const Span span = measure_span(a.geometry, item);
  const ChannelStatistics<C> s = restore_statistics<C>(a, span.statistic);
  const C *weight = static_cast<const C*>(a.weight), *bias = static_cast<const C*>(a.bias);
  for_each_run(runs_of(a.geometry, span.statistic), span.begin, span.end,
               [&](int64_t offset, int64_t length, int64_t channel) {
    const T* x = static_cast<const T*>(a.x) + offset;
    T* y = static_cast<T*>(a.out) + offset;
    const C scale = weight ? scale_of(s, static_cast<double>(weight[channel])) : s.reciprocal;
    const C b = bias ? bias[channel] : 0;
    if (bias) {
      for_each_position<C>(length, [&](auto at) { at.store(y, centred_at(at, x, s) * scale + b); });
    } else {
      for_each_position<C>(length, [&](auto at) { at.store(y, centred_at(at, x, s) * scale); });
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

// In double: terms of both signs cancel, and memory is the bound all the same. Lanes past the end have dy = 0.
template <class T>
void sum_item(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const Part part = part_of(a.geometry, item);
  const ChannelStatistics<C> s = restore_statistics<C>(a, part.statistic);
  const double mean = static_cast<double>(s.mean) + static_cast<double>(s.mean_rest);
  const T *x = static_cast<const T*>(a.x) + part.offset, *dy = static_cast<const T*>(a.dy) + part.offset;
  constexpr int parts = Wide<C>::parts;
  Doubles gradient[parts] = {}, product[parts] = {};
  for_each_position<C>(part.length, [&](auto at) {
    const Wide<C> upstream(at.load(dy)), value(at.load(x));
    for (int i = 0; i < parts; ++i) {
      gradient[i] += upstream.part[i];
      product[i] += upstream.part[i] * (value.part[i] - mean);
    }
  });
  double* partial = a.partial + (item - a.first_item) * 2;
  partial[0] = partial[1] = 0;
  for (int i = 0; i < parts; ++i) {
    partial[0] += sum_of_lanes(gradient[i]);
    partial[1] += sum_of_lanes(product[i]);
  }
}

template <class C>
void merge_sums_of(const ChannelsCall& a, int64_t statistic) {
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
  const double n = static_cast<double>(g.count);
  a.means[statistic * 2] = mean_g / n;
  a.means[statistic * 2 + 1] = mean_gx / n;
}

// dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale with g = dy * weight
template <class T>
void write_gradient_item(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const Part part = part_of(a.geometry, item);
  const ChannelStatistics<C> s = restore_statistics<C>(a, part.statistic);
  const T *x = static_cast<const T*>(a.x) + part.offset, *dy = static_cast<const T*>(a.dy) + part.offset;
  T* dx = static_cast<T*>(a.out) + part.offset;
  const C* weight = static_cast<const C*>(a.weight);
  const C w = weight ? weight[part.channel] : 1;
  if (a.remembered) {
    const C scale = scale_of(s, static_cast<double>(w));
    for_each_position<C>(part.length, [&](auto at) { at.store(dx, at.load(dy) * scale); });
    return;
  }
  const C mean_g = static_cast<C>(a.means[part.statistic * 2]);
  const C slope = slope_of(s, a.means[part.statistic * 2 + 1]);
  for_each_position<C>(part.length, [&](auto at) {
    at.store(dx, ((at.load(dy) * w - mean_g) - centred_at(at, x, s) * slope) * s.reciprocal);
  });
}

void measure(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) { for (int64_t i = begin; i < end; ++i) measure_item<decltype(t)>(a, i); });
}

void merge(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) {
    for (int64_t i = begin; i < end; ++i) merge_statistic<typename Compute<decltype(t)>::type>(a, i);
  });
}

void write(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) { for (int64_t i = begin; i < end; ++i) write_item<decltype(t)>(a, i); });
}

void sum(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) { for (int64_t i = begin; i < end; ++i) sum_item<decltype(t)>(a, i); });
}

void merge_sums(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) {
    for (int64_t i = begin; i < end; ++i) merge_sums_of<typename Compute<decltype(t)>::type>(a, i);
  });
}

void write_gradient(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) { for (int64_t i = begin; i < end; ++i) write_gradient_item<decltype(t)>(a, i); });
}

}  // namespace
}  // namespace EVENKEEL_ISA

extern const ChannelsWalk EVENKEEL_JOIN(channels_first_kernels_, EVENKEEL_ISA);
const ChannelsWalk EVENKEEL_JOIN(channels_first_kernels_, EVENKEEL_ISA) = {
    EVENKEEL_ISA::measure, EVENKEEL_ISA::merge,      EVENKEEL_ISA::write,
    EVENKEEL_ISA::sum,     EVENKEEL_ISA::merge_sums, EVENKEEL_ISA::write_gradient};

}  // namespace evenkeel
