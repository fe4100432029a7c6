// The channel pattern over runs of positions: every run belongs to one channel. Compiled once per instruction set.
//
// The differences from an item's first elements' mean and their squares are summed in one pass; where that was no fair
// guess of the item's mean, in a second pass about a better one, while the item is in cache. So a mean of 1e4 with a
// spread of 0.01 costs no accuracy, a constant channel gives exactly 0, and memory is read once. The items of a
// statistic are merged in double.
#include "channels/planes.h"

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
  const bool streamed = a.streamed && on_a_cache_line(y);
  with_extras<extras>(a, offset, [&](auto activation, const auto& valid) {
    // flat: a call of the activation for each vector took a fifth longer
    [&]() __attribute__((flatten)) {
      for_each_position<C>(length, [&](auto at) {
        if (ahead) fetch(x + at.i + ahead);
        const Vector<C> v = activate<decltype(activation)::value, C>(affine(at.load(x)));
        at.store(y, extras ? valid.keep(at, v) : v);
      }, streamed);
    }();
  });
}

template <class T, bool extras>
void write_measured(const ChannelsCall& a, int64_t item) {
  using C = Opmath<T>;
  const Span span = measure_span(a.geometry, item);
  const ChannelStatistics<C> s = restore_statistics<C>(a, span.statistic);
  const int64_t ahead = fetched_ahead(a.geometry, a.options.activation == Activation::silu);
  for_each_run(runs_of(a.geometry, span.statistic), span.begin, span.end,
               [&](int64_t offset, int64_t length, int64_t channel) {
    write_run<T, extras>(a, offset, length, ahead, Affine<C>(s, a.weight_of(channel), a.bias_of(channel)));
  });
}

// Remembered statistics: the affine of each channel, computed once; the backward has no use for it.
template <class T, bool>
void prepare_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  if (!a.factors) return;
  auto* const affine = static_cast<Affine<C>*>(a.factors);
  for (int64_t i = begin; i < end; ++i) {
    affine[i] = Affine<C>(restore_statistics<C>(a, i), a.weight_of(i), a.bias_of(i));
  }
}

// Parts of runs, in the order of memory.
template <class T, bool extras>
void write_remembered(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const auto* const affine = static_cast<const Affine<C>*>(a.factors);
  int64_t run = begin / g.parts, part = begin % g.parts, channel = run % g.channels;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = part * g.item_size, length = std::min(g.item_size, g.positions - first);
    const int64_t offset = run * g.positions + first;
    const double weight = a.weight_of(channel), bias = a.bias_of(channel);
    if (a.may_cancel && may_cancel(restore_statistics<C>(a, channel), weight, bias)) {
      const ChannelStatistics<C> s = restore_statistics<C>(a, channel);
      const double factor = s.exact_reciprocal() * weight;
      write_run<T, extras>(a, offset, length, 0, [&](Vector<C> value) {
        Wide<C> v = wide_centred<C>(value, s);
        for (auto& each : v.part) each = each * factor + bias;
        return v.rounded();
      });
    } else {
      write_run<T, extras>(a, offset, length, 0, affine[channel]);
    }
    if (++part < g.parts) continue;
    part = 0;
    ++run;
    if (++channel == g.channels) channel = 0;
  }
}

template <class T, bool extras>
void write_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  if (a.remembered) return write_remembered<T, extras>(a, begin, end);
  for (int64_t item = begin; item < end; ++item) write_measured<T, extras>(a, item);
}

// Whether a part's gradient is computed in double.
template <class C>
bool is_exact(const ChannelsCall& a, const Part& part, const ChannelStatistics<C>& s) {
  return has_few_elements(a, part.statistic) ||
         (a.remembered && may_cancel(s, a.weight_of(part.channel), a.bias_of(part.channel)));
}

// The upstream gradient of a part, led through the activation, 0 where it is not valid.
template <class T, bool extras>
class Upstream {
 public:
  using C = Opmath<T>;
  using V = Vector<C>;
  Upstream(const ChannelsCall& a, const Part& part, const ChannelStatistics<C>& s)
      : statistics_(s),
        dy_(static_cast<const T*>(a.dy) + part.offset),
        valid_(valid_lanes<extras>(a, part.offset)),
        activation_(a.options.activation),
        weight_(a.weight_of(part.channel)),
        bias_(a.bias_of(part.channel)),
        affine_(s, weight_, bias_),
        exactly_(extras && is_exact(a, part, s)) {}
  bool exactly() const { return exactly_; }
  // at a position whose input is x
  template <class At>
  V at(const At& at, V x) const {
    if constexpr (extras) {
      if (exactly_ && activation_ != Activation::none) return wide(at, x).rounded();
      return keep(at, through(at.load(dy_), x));
    }
    return at.load(dy_);
  }
  template <class At>
  Wide<C> wide(const At& at, V x) const {
    if constexpr (extras) {
      Wide<C> upstream(keep(at, at.load(dy_)));
      if (activation_ == Activation::none) return upstream;
      if (!exactly_) return Wide<C>(keep(at, through(at.load(dy_), x)));
      const Wide<C> centred = wide_centred<C>(x, statistics_);
      const double scale = statistics_.exact_reciprocal() * weight_;
      for (int i = 0; i < Wide<C>::parts; ++i) {
        const Doubles input = centred.part[i] * scale + bias_;
        upstream.part[i] = through_activation<double>(upstream.part[i], input, activation_);
      }
      return upstream;
    }
    return Wide<C>(at.load(dy_));
  }
  template <class At>
  V keep(const At& at, V v) const {
    if constexpr (!extras) return v;
    return valid_.keep(at, v);
  }

 private:
  V through(V upstream, V x) const {
    return through_activation<C>(upstream, affine_(x), activation_);
  }
  const ChannelStatistics<C> statistics_;
  const T* dy_;
  const ValidLanes valid_;
  const Activation activation_;
  const double weight_, bias_;
  const Affine<C> affine_;
  const bool exactly_;
};

// Where sum_one leaves the gradient that went through the activation for write_gradient_one: the slope costs more than
// memory in cache does.
template <class C>
C* kept_at(const ChannelsCall& a, const Part& part) {
  return a.kept && sums_are_short(a) ? static_cast<C*>(a.kept) + part.place : nullptr;
}

// The sums of the gradient, and of its products with the differences from the mean. In double: terms of both signs
// cancel.
template <class T, bool extras>
void sum_wide(const T* x, int64_t length, const Upstream<T, extras>& upstream,
              const ChannelStatistics<Opmath<T>>& s, double (&sums)[2]) {
  using C = Opmath<T>;
  constexpr int parts = Wide<C>::parts;
  Doubles gradient[parts] = {}, product[parts] = {};
  for_each_position<C>(length, [&](auto at) {
    const auto value = upstream.keep(at, at.load(x));
    const Wide<C> wide = upstream.wide(at, value), difference = wide_centred<C>(value, s);
    for (int i = 0; i < parts; ++i) {
      gradient[i] += wide.part[i];
      product[i] += wide.part[i] * difference.part[i];
    }
  });
  sums[0] = sums[1] = 0;
  for (int i = 0; i < parts; ++i) {
    sums[0] += sum_of_lanes(gradient[i]);
    sums[1] += sum_of_lanes(product[i]);
  }
}

// The same in floats, with the differences from the rounded mean. Lanes past the end have dy = 0.
template <class T, bool extras>
void sum_floats(const ChannelsCall& a, const Part& part, const ChannelStatistics<Opmath<T>>& s,
                double (&sums)[2]) {
  using C = Opmath<T>;
  using V = Vector<C>;
  const T *x = static_cast<const T*>(a.x) + part.offset, *dy = static_cast<const T*>(a.dy) + part.offset;
  const Affine<C> affine(s, a.weight_of(part.channel), a.bias_of(part.channel));
  C* const kept = kept_at<C>(a, part);
  const bool fetches = kept && !a.streamed;
  const T* dx = static_cast<const T*>(a.out) + part.offset;
  with_extras<extras>(a, part.offset, [&](auto activation, const auto& valid) {
    sum_terms<C>(part.length, sums, [&](auto at, V(&out)[2]) {
      V value = at.load(x), upstream = at.load(dy);
      if constexpr (extras) {
        if constexpr (decltype(activation)::value == Activation::silu) {
          if (fetches) fetch_to_write(dx + at.i);
          fetch(x + at.i + soon);
          fetch(dy + at.i + soon);
        }
        value = valid.keep(at, value);
        upstream = valid.keep(at, through_activation<decltype(activation)::value, C>(upstream, affine(value)));
        if (decltype(activation)::value == Activation::silu && kept) at.store(kept, upstream);
      }
      out[0] = upstream;
      out[1] = upstream * (value - s.mean);
    });
  });
}

// The same, but in double where floats do not hold the sums.
template <class T, bool extras>
void sum_short(const ChannelsCall& a, const Part& part, const ChannelStatistics<Opmath<T>>& s,
               double (&sums)[2]) {
  sum_floats<T, extras>(a, part, s, sums);
  if (sums_hold<Opmath<T>>(sums[0], sums[1]) || is_nan(s)) return;
  const Upstream<T, extras> upstream(a, part, s);
  sum_wide<T, extras>(static_cast<const T*>(a.x) + part.offset, part.length, upstream, s, sums);
  sums[1] += static_cast<double>(s.mean_rest) * sums[0];
}

template <class T, bool extras>
void sum_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  const bool is_short = sums_are_short(a);
  for_each_part<C>(a, begin, end, [&](int64_t item, const Part& part, const ChannelStatistics<C>& s) {
    double sums[2];
    if (is_short && !(extras && is_exact(a, part, s))) {
      sum_short<T, extras>(a, part, s, sums);
      sums[1] -= static_cast<double>(s.mean_rest) * sums[0];
    } else {
      const Upstream<T, extras> upstream(a, part, s);
      sum_wide<T, extras>(static_cast<const T*>(a.x) + part.offset, part.length, upstream, s, sums);
    }
    double* partial = a.partial + (item - a.first_item) * 2;
    partial[0] = sums[0];
    partial[1] = sums[1];
  });
}

template <class T, bool>
void merge_sums_one(const ChannelsCall& a, int64_t statistic) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const Runs runs = runs_of(g, statistic);
  const int64_t share = g.groups ? g.channels / g.groups : 1, count = g.groups ? share : g.outer;
  const int64_t first = g.groups ? statistic * share : statistic, step = g.groups ? 1 : g.channels;
  const double reciprocal = restore_statistics<C>(a, statistic).exact_reciprocal();
  const double* partial = a.partial + (statistic * g.sum_items - a.first_item) * 2;
  double *const sums = a.sums + first, *const products = a.products() + first;
  double mean_g = 0, mean_gx = 0;
  for (int64_t run = 0; run < count; ++run) {
    double sum = 0, product = 0;
    for (int64_t part = 0; part < g.parts; ++part, partial += 2) {
      sum += partial[0];
      product += partial[1];
    }
    product *= reciprocal;
    sums[run * step] = sum;
    products[run * step] = product;
    const double w = a.weight_of(runs.channel + run * runs.next_channel);
    mean_g += w * sum;
    mean_gx += w * product;
  }
  const double n = count_of(a, statistic);
  a.means[statistic * 2] = mean_g / n;
  a.means[statistic * 2 + 1] = mean_gx / n;
}

// dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale with g = dy * weight
template <class T, bool extras>
void write_gradient_part(const ChannelsCall& a, const Part& part,
                         const ChannelStatistics<Opmath<T>>& s) {
  using C = Opmath<T>;
  const T* x = static_cast<const T*>(a.x) + part.offset;
  const Upstream<T, extras> upstream(a, part, s);
  T* dx = static_cast<T*>(a.out) + part.offset;
  const double w = a.weight_of(part.channel);
  if (a.remembered) {
    const C scale = scale_of(s, w);
    for_each_position<C>(part.length, [&](auto at) {
      at.store(dx, upstream.at(at, upstream.keep(at, at.load(x))) * scale);
    });
    return;
  }
  const double wide_mean_g = a.means[part.statistic * 2], mean_gx = a.means[part.statistic * 2 + 1];
  if (upstream.exactly()) {
    const double along = exact_slope_of(s, mean_gx), factor = s.exact_reciprocal();
    for_each_position<C>(part.length, [&](auto at) {
      const auto value = upstream.keep(at, at.load(x));
      const Wide<C> centred = wide_centred<C>(value, s);
      Wide<C> v = upstream.wide(at, value);
      for (int i = 0; i < Wide<C>::parts; ++i) {
        v.part[i] = ((v.part[i] * w - wide_mean_g) - centred.part[i] * along) * factor;
      }
      at.store(dx, upstream.keep(at, v.rounded()));
    });
    return;
  }
  using V = Vector<C>;
  const Projection<C> project(s, w, wide_mean_g, mean_gx);
  const T* dy = static_cast<const T*>(a.dy) + part.offset;
  const int64_t ahead = fetched_ahead(a.geometry, false);
  const bool streamed = a.streamed && on_a_cache_line(dx);
  const auto over = [&](const auto& gradient) {
    for_each_position<C>(part.length, [&](auto at) {
      if (ahead) {
        fetch(x + at.i + ahead);
        fetch(dy + at.i + ahead);
      }
      const V value = upstream.keep(at, at.load(x));
      at.store(dx, upstream.keep(at, project(gradient(at, value), value)));
    }, streamed);
  };
  if (const C* kept = kept_at<C>(a, part); extras && kept) return over([&](auto at, V) { return at.load(kept); });
  over([&](auto at, V value) { return upstream.at(at, value); });
}

template <class T, bool extras>
void write_gradient_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  for_each_part<C>(a, begin, end, [&](int64_t, const Part& part, const ChannelStatistics<C>& s) {
    write_gradient_part<T, extras>(a, part, s);
  });
}

}  // namespace

const ChannelsWalk planes_walk = {.prepare = EVENKEEL_PHASE(prepare_range),
                                  .measure = EVENKEEL_PHASE_OF_EACH(measure_one),
                                  .merge = EVENKEEL_PHASE_OF_EACH(merge_one),
                                  .write = EVENKEEL_PHASE(write_range),
                                  .sum = EVENKEEL_PHASE(sum_range),
                                  .merge_sums = EVENKEEL_PHASE_OF_EACH(merge_sums_one),
                                  .write_gradient = EVENKEEL_PHASE(write_gradient_range)};

}  // namespace evenkeel::EVENKEEL_ISA
