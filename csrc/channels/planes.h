// Channels as planes: the runs of positions that make up a statistic, their mask, and the items of both directions.
#pragma once

#include <algorithm>

#include "channels/factors.h"
#include "channels/phases.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// The runs that make up a statistic: run i begins at base + i * stride and belongs to channel + i * next_channel.
struct Runs {
  int64_t base, length, stride, channel, next_channel;
};

Runs runs_of(const ChannelsGeometry& g, int64_t statistic) {
  const int64_t p = g.positions;
  if (g.groups == 0) return {statistic * p, p, g.channels * p, statistic, 0};
  const int64_t share = g.channels / g.groups, channel = statistic % g.groups * share;
  return {statistic * share * p, p, p, channel, 1};
}

// The processors with AVX2 alone foresee little: there every next statistic is fetched, and where it is written, where
// runs are long enough for it.
inline bool fetches_much(const ChannelsGeometry& g) { return register_bytes == 32 && g.positions >= 64; }

// From an element to that of the next statistic at the same place, which is fetched while this one is written; 0 for
// none. It pays where memory is idle meanwhile, and where a statistic lies in pieces, which no processor foresees.
int64_t fetched_ahead(const ChannelsCall& a, bool computes_long) {
  const ChannelsGeometry& g = a.geometry;
  if (!a.fetched) return 0;
  return !g.groups ? g.positions : computes_long || fetches_much(g) ? g.count : 0;
}

// Calls body(offset, length, channel) for the runs, or parts of runs, between two positions of a statistic.
template <class Body>
void for_each_run(const Runs& runs, int64_t begin, int64_t end, const Body& body) {
  int64_t run = begin == 0 ? 0 : begin / runs.length, at = begin - run * runs.length;
  for (; begin < end; ++run) {
    const int64_t rest = runs.length - at, count = rest < end - begin ? rest : end - begin;
    body(runs.base + run * runs.stride + at, count, runs.channel + run * runs.next_channel);
    begin += count;
    at = 0;
  }
}

// Calls body(position) along a row y of n elements that is not read again: the last vector may overlap the one before.
// Only whole cache lines are streamed: what stands in a cache already would have to leave it first.
template <class C, class T, class Body>
inline void for_each_output(const T* y, int64_t n, const Body& body, bool streamed) {
  constexpr int64_t width = Lanes<C>::width;
  int64_t i = 0;
  if (streamed) {
    constexpr int64_t line = cache_line / sizeof(T);
    const int64_t head = std::min(elements_to_line(y), n), lines = head + (n - head) / line * line;
    while (i < head) {
      const int64_t count = std::min(head - i, width);
      body(Rest<C>{i, static_cast<int>(count)});
      i += count;
    }
    for (; i < lines; i += width) body(Streamed<C>{{i}});
    for (; i + width <= n; i += width) body(Whole<C>{i});
  } else if (n >= width) {
    for (;; i = std::min(i + width, n - width)) {
      body(Whole<C>{i});
      if (i + width >= n) return;
    }
  }
  if (i < n) body(Rest<C>{i, static_cast<int>(n - i)});
}

// Calls body(position in y, factors) along runs that follow each other, of channels from one on: vectors go on from one
// run to the next, none of which is shorter. Each of `factors` has a value for every channel. L: the lanes in which the
// inside of a run is walked.
template <class L, class C, class T, int K, class Body>
EVENKEEL_INLINE void walk_runs(const ChannelsGeometry& g, bool streamed, const T* y, int64_t runs, int64_t channel,
                               const C* const (&factors)[K], const Body& body) {
  using V = Vector<C>;
  constexpr int64_t width = Lanes<C>::width;
  const int64_t n = runs * g.positions;
  const auto walk = [&](auto at) __attribute__((always_inline)) {
    int64_t stop = g.positions;
    const auto enter_next = [&] {
      if (++channel == g.channels) channel = 0;
      stop += g.positions;
    };
    const auto of = [&](int k) { return V{} + factors[k][channel]; };
    V own[K];
    if constexpr (!std::is_same_v<decltype(at), Whole<C>>) {
      for (const int64_t head = std::min(elements_to_line(y), n); at.i < head;) {
        if (at.i == stop) enter_next();
        for (int k = 0; k < K; ++k) own[k] = of(k);
        const int64_t count = std::min({head, stop, at.i + width}) - at.i;
        body(Rest<C>{at.i, static_cast<int>(count)}, own);
        at.i += count;
      }
    }
    while (true) {
      for (int k = 0; k < K; ++k) own[k] = of(k);
      if constexpr (!is_in_order<L> && std::is_same_v<decltype(at), Whole<C>>) {
        Pair both[K];
        for (int k = 0; k < K; ++k) both[k] = {own[k], own[k]};
        for (; at.i + Lanes<L>::width <= stop; at.i += Lanes<L>::width) body(Whole<L>{at.i}, both);
      }
      for (; at.i + width <= stop; at.i += width) body(at, own);
      if (stop == n) {
        if (at.i < n) body(Rest<C>{at.i, static_cast<int>(n - at.i)}, own);
        return;
      }
      const int64_t own_stop = stop;
      enter_next();
      if (at.i == own_stop) continue;
      const auto lanes = lanes_below<C>(static_cast<int>(own_stop - at.i));
      for (int k = 0; k < K; ++k) own[k] = choose(lanes, own[k], of(k));
      body(at, own);
      at.i += width;
    }
  };
  streamed ? walk(Streamed<C>{{0}}) : walk(Whole<C>{0});
}

// What is subtracted, multiplied and added in neighbouring channels.
template <class C>
struct Affines {
  const C* factors[3];
};

// The same of measured statistics: of neighbouring channels, or of one that they share.
template <class C>
struct MeasuredAffines {
  C mean[most_together], scale[most_together], shift[most_together];
  template <class Statistics>
  MeasuredAffines(const ChannelsCall& a, int64_t channel, int64_t count, const Statistics& s) {
    // whole vectors: behind the last there is room, and parameters may be read
    constexpr int64_t vector = Lanes<double>::width;
    const int64_t whole = ceil_divide(count, vector) * vector;
    find_affines(s, whole, a.weights_from(channel), a.biases_from(channel), mean, scale, shift);
  }
  operator Affines<C>() const { return {{mean, scale, shift}}; }
};

// The mask's run for that of x from an offset on.
template <bool extras>
ValidLanes valid_lanes(const ChannelsCall& a, int64_t offset) {
  if (!extras || !a.mask) return {nullptr};
  const ChannelsGeometry& g = a.geometry;
  return {a.mask + offset / (g.channels * g.positions) * g.positions + offset % g.positions};
}

// Calls body(activation, valid lanes of the run at an offset), both known at compile time where they can be.
template <bool extras, class Body>
void with_extras(const ChannelsCall& a, int64_t offset, const Body& body) {
  with_activation_of<extras>(a, [&](auto activation) {
    if constexpr (extras) {
      if (a.mask) return body(activation, valid_lanes<extras>(a, offset));
    }
    body(activation, AllLanes{});
  });
}

struct Span {
  int64_t statistic, begin, end;
};

Span measure_span(const ChannelsGeometry& g, int64_t item) {
  const int64_t begin = item % g.measure_items * g.item_size, end = begin + g.item_size;
  return {item / g.measure_items, begin, end < g.count ? end : g.count};
}

// Whether each run is a lane of the backward's sums, which are complete with it.
inline bool sums_runs(const ChannelsCall& a) { return a.remembered && a.geometry.parts == 1; }

// An item of the backward is one part of one run: the sums are kept for each channel of each sample.
struct Part {
  int64_t statistic, channel, offset, length;
  int64_t place;  // in the statistic
};

// Calls body(item, its part, the statistic) for the items [begin, end). A division for each would take longer than a
// short run.
template <class C, class Body>
void for_each_part(const ChannelsCall& a, int64_t begin, int64_t end, const Body& body) {
  const ChannelsGeometry& g = a.geometry;
  for (int64_t item = begin; item < end;) {
    const int64_t statistic = item / g.sum_items, first = statistic * g.sum_items;
    const ChannelStatistics<C> s = restore_statistics<C>(a, statistic);
    const Runs runs = runs_of(g, statistic);
    int64_t run = item == first ? 0 : (item - first) / g.parts, at = (item - first - run * g.parts) * g.item_size;
    for (const int64_t stop = std::min(end, first + g.sum_items); item < stop; ++item) {
      const int64_t rest = g.positions - at;
      body(item,
           Part{statistic, runs.channel + run * runs.next_channel, runs.base + run * runs.stride + at,
                rest < g.item_size ? rest : g.item_size, run * g.positions + at},
           s);
      at += g.item_size;
      if (at < g.positions) continue;
      at = 0;
      ++run;
    }
  }
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
