// The channel pattern over runs of positions: every run belongs to one channel. Compiled once per instruction set.
//
// The differences from an item's first elements' mean and their squares are summed in one pass; where that was no fair
// guess of the item's mean, in a second pass about a better one, while the item is in cache. So a mean of 1e4 with a
// spread of 0.01 costs no accuracy, a constant channel gives exactly 0, and memory is read once. The items of a
// statistic are merged in double.
#include "channels/planes_gradient.h"
#include "channels/planes_remembered.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// A first guess of the mean of [begin, end): that of a few elements, or the first valid one.
template <class T, bool extras>
Opmath<T> guess_mean(const ChannelsCall& a, const Runs& runs, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  const T* x = static_cast<const T*>(a.x);
  constexpr int64_t few = 16;
  if (extras && a.mask) {
    double first = 0;
    bool searching = true;
    for_each_run(runs, begin, end, [&](int64_t offset, int64_t length, int64_t) {
      const uint8_t* mask = valid_lanes<extras>(a, offset).mask;
      for (int64_t i = 0; searching && i < length; ++i) {
        if (!mask[i]) continue;
        first = to_double(x[offset + i]);
        searching = false;
      }
    });
    return static_cast<C>(first);
  }
  constexpr int vector = Lanes<C>::width;
  if (const int64_t run = begin / runs.length, at = begin - run * runs.length;
      at + vector <= runs.length && begin + vector <= end) {
    return static_cast<C>(sum_of_lanes(as_doubles(load(x + runs.base + run * runs.stride + at))) / vector);
  }
  const int64_t stop = begin + few < end ? begin + few : end;
  double sum = 0;
  for_each_run(runs, begin, stop, [&](int64_t offset, int64_t length, int64_t) {
    for (int64_t i = 0; i < length; ++i) sum += to_double(x[offset + i]);
  });
  return static_cast<C>(sum / static_cast<double>(stop - begin));
}

template <class T, bool extras>
void measure_one(const ChannelsCall& a, int64_t item) {
  using C = Opmath<T>;
  using V = Vector<C>;
  const Span span = measure_span(a.geometry, item);
  Runs runs = runs_of(a.geometry, span.statistic);
  if (runs.next_channel && !a.mask) runs.length = a.geometry.count;  // a group lies in one piece
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
    Doubles totals[2] = {};
    for_each_run(runs, span.begin, span.end, [&](int64_t offset, int64_t length, int64_t) {
      const ValidLanes valid = valid_lanes<extras>(a, offset);
      add_terms<C>(length, totals, [&](auto at, V(&out)[2]) {
        const V d = extras ? valid.keep(at, at.load(x + offset) - shift) : at.keep(at.load(x + offset) - shift);
        out[0] = d;
        out[1] = d * d;
      });
    });
    sum = sum_of_lanes(totals[0]);
    square = sum_of_lanes(totals[1]);
  };
  pass();
  if (!is_good_shift(count, sum, square)) {
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
  save_merged<Opmath<T>>(a, statistic, merged);
}

// y of a run, or of a part of one; `ahead` elements further is what will be read next, 0 for nothing.
template <class T, bool extras, class Function>
void write_run(const ChannelsCall& a, int64_t offset, int64_t length, int64_t ahead, const Function& affine) {
  using C = Opmath<T>;
  const T* x = static_cast<const T*>(a.x) + offset;
  T* y = static_cast<T*>(a.out) + offset;
  const bool fetches_output = !a.streamed && fetches_much(a.geometry);
  with_extras<extras>(a, offset, [&](auto activation, const auto& valid) {
    // flat: a call of the activation for each vector took a fifth longer
    with_known(ahead, [&](auto fetches) __attribute__((flatten)) {
      for_each_output<C>(y, length, [&](auto at) {
        if (fetches) fetch(x + at.i + ahead);
        if (fetches && fetches_output) fetch_to_write(y + at.i + ahead);
        const Vector<C> v = activate<decltype(activation)::value, C>(affine(at.load(x)));
        at.store(y, extras ? valid.keep(at, v) : v);
      }, a.streamed);
    });
  });
}

// Whole runs that follow each other, of channels from one on. `ahead` elements further is what will be read next.
template <class T, bool extras>
void write_runs(const ChannelsCall& a, int64_t begin, int64_t end, int64_t channel, int64_t ahead,
                const Affines<Opmath<T>>& affines) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const T* x = static_cast<const T*>(a.x) + begin * g.positions;
  T* y = static_cast<T*>(a.out) + begin * g.positions;
  const bool fetches_output = !a.streamed && (a.together > 1 || fetches_much(g));
  with_activation_of<extras>(a, [&](auto activation) {
    with_known(ahead, [&](auto fetches) __attribute__((flatten)) {
      using L = typename Written<T>::lanes;
      walk_runs<L>(g, a.streamed, y, end - begin, channel, affines.factors, [&](const auto& at, const auto& affine) {
        if (fetches) fetch(x + at.i + ahead);
        if (fetches && fetches_output) fetch_to_write(y + at.i + soon);
        const auto v = (at.load(x) - affine[0]) * affine[1] + affine[2];
        at.store(y, activate<decltype(activation)::value, C>(v));
      });
    });
  });
}

template <class T, bool extras>
void write_measured(const ChannelsCall& a, int64_t item) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const Span span = measure_span(g, item);
  const ChannelStatistics<C> s = restore_statistics<C>(a, span.statistic);
  const int64_t ahead = fetched_ahead(a, a.options.activation == Activation::silu);
  const Runs runs = runs_of(g, span.statistic);
  const int64_t first_run = span.begin / g.positions, count = (span.end - span.begin) / g.positions;
  if (runs.next_channel && count > 1 && !a.mask) {
    const MeasuredAffines<C> affines(a, runs.channel + first_run, count, s);
    const int64_t run = runs.base / g.positions + first_run;
    return write_runs<T, extras>(a, run, run + count, 0, ahead, affines);
  }
  const Affine<C> first(s, a.weight_of(runs.channel), a.bias_of(runs.channel));
  for_each_run(runs, span.begin, span.end, [&](int64_t offset, int64_t length, int64_t channel) {
    const bool other = runs.next_channel;
    const Affine<C> affine = other ? Affine<C>(s, a.weight_of(channel), a.bias_of(channel)) : first;
    write_run<T, extras>(a, offset, length, ahead, affine);
  });
}

// Statistics of neighbouring channels, sample by sample: in memory their runs follow each other.
template <class T, bool extras>
void write_together(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  StatisticsStrip<C> s;
  s.restore(a, begin, end - begin);
  const MeasuredAffines<C> affines(a, begin, end - begin, s);
  for (int64_t sample = 0; sample < g.outer; ++sample) {
    const int64_t run = sample * g.channels;
    write_runs<T, extras>(a, run + begin, run + end, 0, (end - begin) * g.positions, affines);
  }
}

// Remembered statistics: parts of runs, in the order of memory.
template <class T, bool extras>
void write_remembered(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const Factors<C> factors = lane_factors<C>(a, 0);
  const bool together = g.parts == 1 && !a.mask;
  int64_t run = begin / g.parts, part = begin % g.parts, channel = run % g.channels;
  const auto next_run = [&] {
    ++run;
    if (++channel == g.channels) channel = 0;
  };
  while (run * g.parts + part < end) {
    const int64_t first = part * g.item_size, length = std::min(g.item_size, g.positions - first);
    const int64_t offset = run * g.positions + first;
    if (a.may_cancel && factors.cancels[channel]) {
      const double mean = factors.exact_mean[channel], scale = factors.exact_scale[channel];
      const double bias = factors.exact_bias[channel];
      write_run<T, extras>(a, offset, length, 0, [&](Vector<C> value) {
        Wide<C> v(value);
        for (auto& each : v.part) each = (each - mean) * scale + bias;
        return v.rounded();
      });
    } else if (together) {
      const int64_t start = run;
      do next_run();
      while (run < end && !(a.may_cancel && factors.cancels[channel]));
      // in the order of memory, which processors foresee
      write_runs<T, extras>(a, start, run, start % g.channels, 0, {{factors.mean, factors.scale, factors.shift}});
      continue;
    } else {
      write_run<T, extras>(a, offset, length, 0, factors.affine_of(channel));
    }
    if (++part < g.parts) continue;
    part = 0;
    next_run();
  }
}

template <class T, bool extras>
void write_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  if (a.remembered) return write_remembered<T, extras>(a, begin, end);
  const ChannelsGeometry& g = a.geometry;
  if (a.together > 1) {
    write_together<T, extras>(a, begin / g.measure_items, end / g.measure_items);
  } else {
    for (int64_t item = begin; item < end; ++item) write_measured<T, extras>(a, item);
  }
}

template <class T, bool extras>
void sum_gradient_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  sums_runs(a) ? sum_remembered<T, extras>(a, begin, end) : sum_range<T, extras>(a, begin, end);
}

}  // namespace

const ChannelsWalk planes_walk = {.measure = EVENKEEL_PHASE_OF_EACH(measure_one),
                                  .merge = EVENKEEL_PHASE_OF_EACH(merge_one),
                                  .write = EVENKEEL_PHASE(write_range),
                                  .sum = EVENKEEL_PHASE(sum_gradient_range),
                                  .merge_sums = EVENKEEL_PHASE_OF_EACH(merge_sums_one),
                                  .write_gradient = EVENKEEL_PHASE(write_gradient_range)};

}  // namespace evenkeel::EVENKEEL_ISA
