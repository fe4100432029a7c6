// Channels as planes, backward: the gradient that comes from above, through an activation, and its sums.
#pragma once

#include "channels/abreast.h"
#include "channels/planes.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// Whether a part's gradient is computed in double.
template <class C>
bool is_exact(const ChannelsCall& a, const Part& part, const ChannelStatistics<C>& s) {
  return has_few_elements(a, part.statistic) || (has_precise_slope(a) && !sums_are_short(a)) ||
         (a.remembered && may_cancel(s, a.weight_of(part.channel), a.bias_of(part.channel)));
}

// The upstream gradient of a part, led through the activation, 0 where it is not valid. ReLU lets through what it let
// through to y, whose input is in double only where remembered statistics cancel.
template <class T, bool extras, Activation activation, class Valid>
class Upstream {
 public:
  using C = Opmath<T>;
  using V = Vector<C>;
  Upstream(const ChannelsCall& a, const Part& part, const ChannelStatistics<C>& s, const Valid& valid)
      : statistics_(s),
        dy_(static_cast<const T*>(a.dy) + part.offset),
        valid_(valid),
        weight_(a.weight_of(part.channel)),
        bias_(a.bias_of(part.channel)),
        affine_(s, weight_, bias_),
        exactly_(extras && is_exact(a, part, s)),
        precisely_(has_precise_slope(a)),
        passes_as_y_(activation == Activation::none || !(exactly_ || precisely_) ||
                     (activation == Activation::relu && !a.remembered)) {}
  bool exactly() const { return exactly_; }
  // at a position whose input is x
  template <class At>
  EVENKEEL_INLINE V at(const At& at, V x) const {
    if constexpr (activation == Activation::silu && std::is_same_v<T, float>) {
      if (precisely_) return keep(at, at.load(dy_) * precise_slope_of_silu(input(x).part));
    }
    return keep(at, through_activation<activation, C>(at.load(dy_), affine_(x)));
  }
  template <class At>
  EVENKEEL_INLINE Wide<C> wide(const At& at, V x) const {
    if (passes_as_y_) return Wide<C>(this->at(at, x));
    return through_activation<activation, C>(Wide<C>(keep(at, at.load(dy_))), input(x));
  }
  template <class At>
  EVENKEEL_INLINE V keep(const At& at, V v) const {
    if constexpr (!extras) return v;
    return valid_.keep(at, v);
  }

 private:
  EVENKEEL_INLINE Wide<C> input(V x) const {
    return wide_centred(Wide<C>(x), statistics_) * (statistics_.exact_reciprocal() * weight_) + bias_;
  }
  const ChannelStatistics<C> statistics_;
  const T* dy_;
  const Valid valid_;
  const double weight_, bias_;
  const Affine<C> affine_;
  const bool exactly_, precisely_, passes_as_y_;
};

// Calls body(activation, upstream gradient), both known at compile time.
template <class T, bool extras, class Body>
void with_upstream(const ChannelsCall& a, const Part& part, const ChannelStatistics<Opmath<T>>& s, const Body& body) {
  with_extras<extras>(a, part.offset, [&](auto activation, const auto& valid) {
    using Valid = std::decay_t<decltype(valid)>;
    body(activation, Upstream<T, extras, decltype(activation)::value, Valid>(a, part, s, valid));
  });
}

// Whether nothing is masked or in double, so that runs may be treated together.
inline bool is_plain(const ChannelsCall& a) { return !a.mask && !a.remembered && !has_few_elements(a, 0); }

// Where the sums leave a statistic's gradients that went through the activation for dx, from a place on: the slope costs
// more than memory in cache does.
template <class C>
C* kept_at(const ChannelsCall& a, int64_t place) {
  return a.kept && sums_are_short(a) ? static_cast<C*>(a.kept) + place : nullptr;
}

// dx of a part with remembered statistics, through which nothing flows back.
template <class T>
struct RememberedGradient {
  using C = Opmath<T>;
  T* const dx;
  const C scale;
  RememberedGradient(const ChannelsCall& a, const Part& part, const ChannelStatistics<C>& s)
      : dx(static_cast<T*>(a.out) + part.offset), scale(scale_of(s, a.weight_of(part.channel))) {}
  template <class At>
  EVENKEEL_INLINE void operator()(const At& at, const Vector<C>& upstream, const auto& keep) const {
    at.store(dx, keep(upstream * scale));
  }
};

// The sums of the gradient, and of its products with the differences from the mean. In double: terms of both signs
// cancel.
template <class T, bool extras, class Written = NothingWritten>
void sum_wide(const ChannelsCall& a, const Part& part, const ChannelStatistics<Opmath<T>>& s, double (&sums)[2],
              const Written& written = {}) {
  using C = Opmath<T>;
  constexpr int parts = Wide<C>::parts;
  const T* x = static_cast<const T*>(a.x) + part.offset;
  Doubles gradient[parts] = {}, product[parts] = {};
  with_upstream<T, extras>(a, part, s, [&](auto, const auto& upstream) {
    for_each_position<C>(part.length, [&](auto at) {
      const auto value = upstream.keep(at, at.load(x));
      const Wide<C> wide = upstream.wide(at, value), difference = wide_centred(Wide<C>(value), s);
      written(at, wide.rounded(), [&](const auto& v) { return upstream.keep(at, v); });
      for (int i = 0; i < parts; ++i) {
        gradient[i] += wide.part[i];
        product[i] += wide.part[i] * difference.part[i];
      }
    });
  });
  sums[0] = sums[1] = 0;
  for (int i = 0; i < parts; ++i) {
    sums[0] += sum_of_lanes(gradient[i]);
    sums[1] += sum_of_lanes(product[i]);
  }
}

template <class T, bool extras, class Written>
void sum_floats(const ChannelsCall& a, const Part& part, const ChannelStatistics<Opmath<T>>& s, double (&sums)[2],
                const Written& written) {
  using C = Opmath<T>;
  using V = Vector<C>;
  const T *x = static_cast<const T*>(a.x) + part.offset, *dy = static_cast<const T*>(a.dy) + part.offset;
  if constexpr (!extras && std::is_same_v<Written, NothingWritten>) {
    const GradientTerms<T, Activation::none> terms{x, dy, {s.mean, 0, 0}};
    if (part.length > few_elements) return sum_terms<C>(part.length, sums, terms);
    V lanes[2];
    add_block<C, 1>(0, part.length, lanes, terms);
    for (int k = 0; k < 2; ++k) sums[k] = sum_of_lanes(lanes[k]);
    return;
  }
  C* const kept = kept_at<C>(a, part.place);
  const bool fetches = kept && !a.streamed;
  const T* dx = static_cast<const T*>(a.out) + part.offset;
  with_upstream<T, extras>(a, part, s, [&](auto activation, const auto& upstream) {
    constexpr bool is_silu = decltype(activation)::value == Activation::silu;
    sum_terms<C>(part.length, sums, [&](auto at, V(&out)[2]) {
      if constexpr (is_silu) {
        if (fetches) fetch_to_write(dx + at.i);
        fetch(x + at.i + soon);
        fetch(dy + at.i + soon);
      }
      const V value = upstream.keep(at, at.load(x));
      out[0] = upstream.at(at, value);
      if (is_silu && kept) at.store(kept, out[0]);
      written(at, out[0], [&](const V& v) __attribute__((always_inline)) { return upstream.keep(at, v); });
      out[1] = out[0] * (value - s.mean);
    });
  });
}

// The same, but in double where floats do not hold the sums.
template <class T, bool extras, class Written>
void sum_short(const ChannelsCall& a, const Part& part, const ChannelStatistics<Opmath<T>>& s, double (&sums)[2],
               const Written& written) {
  sum_floats<T, extras>(a, part, s, sums, written);
  if (sums_hold<Opmath<T>>(sums[0], sums[1]) || is_nan(s)) {
    sums[1] = about_exact_mean(sums[1], static_cast<double>(s.mean_rest), sums[0]);
  } else {
    sum_wide<T, extras>(a, part, s, sums);
  }
}

template <class T, bool extras>
void sum_part(const ChannelsCall& a, const Part& part, const ChannelStatistics<Opmath<T>>& s, double* partial) {
  double sums[2];
  const auto sum = [&](const auto& written) {
    if (!sums_are_short(a) || (extras && is_exact(a, part, s))) {
      return sum_wide<T, extras>(a, part, s, sums, written);
    }
    sum_short<T, extras>(a, part, s, sums, written);
  };
  writes_with_sums(a) ? sum(RememberedGradient<T>(a, part, s)) : sum(NothingWritten{});
  partial[0] = sums[0];
  partial[1] = sums[1];
}

constexpr int64_t longest_abreast = 256;  // elements of a run that went through an activation to where it is kept
template <class C>
struct RunsAbreast {
  int64_t offset[abreast];
  C mean[abreast], mean_rest[abreast];
  C scale[abreast], shift[abreast];  // where there is an activation
  C* kept;  // where the first one's gradients are kept, the others' behind them, or null
  int count = 0;

  // of those that are added from now on
  void set_statistics(const ChannelStatistics<C>& s) {
    std::fill_n(mean + count, abreast - count, s.mean);
    std::fill_n(mean_rest + count, abreast - count, s.mean_rest);
  }
};

// Leads the gradients of a statistic's runs through the activation, to where they are kept.
template <Activation activation, class T>
void keep_gradients(const ChannelsCall& a, const RunsAbreast<Opmath<T>>& runs) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const auto lead = [&](const auto& at, int64_t offset, C* kept, auto scale, auto shift) __attribute__((always_inline)) {
    const T *x = static_cast<const T*>(a.x) + offset, *dy = static_cast<const T*>(a.dy) + offset;
    if (!a.streamed) fetch_to_write(static_cast<const T*>(a.out) + offset + at.i);
    fetch(x + at.i + soon);
    fetch(dy + at.i + soon);
    at.store(kept, through_activation<activation, C>(at.load(dy), (at.load(x) - runs.mean[0]) * scale + shift));
  };
  if (g.groups) {
    const C* const factors[] = {runs.scale, runs.shift};
    walk_runs<C>(g, false, runs.kept, abreast, 0, factors, [&](const auto& at, const auto& own) __attribute__((always_inline)) {
      lead(at, runs.offset[0], runs.kept, own[0], own[1]);
    });
    return;
  }
  for (int i = 0; i < abreast; ++i) {
    for_each_position<C>(g.positions, [&](auto at) __attribute__((always_inline)) {
      lead(at, runs.offset[i], runs.kept + i * g.positions, runs.scale[i], runs.shift[i]);
    });
  }
}

// Their sums, of terms_of(run); whether floats hold all of them.
template <bool after_activation, class C, class Terms>
bool add_abreast(int64_t length, const RunsAbreast<C>& runs, double* partial, const Terms& terms_of) {
  const auto [gradient, product] = sums_abreast<after_activation, C>(length, terms_of);
  double sums[3][abreast];
  store(sums[0], gradient);
  store(sums[1], product);
  store(sums[2], product - Eight<C>::widened(runs.mean_rest) * gradient);
  for (int i = 0; i < abreast; ++i) {
    partial[2 * i] = sums[0][i];
    partial[2 * i + 1] = sums[2][i];
  }
  return all_hold(sums[0], sums[1], abreast);
}
template <Activation activation, class T>
bool sum_abreast(const ChannelsCall& a, const RunsAbreast<Opmath<T>>& runs, double* partial) {
  using C = Opmath<T>;
  constexpr bool is_active = activation != Activation::none;
  const int64_t length = a.geometry.positions;
  const T *const x = static_cast<const T*>(a.x), *const dy = static_cast<const T*>(a.dy);
  if constexpr (activation == Activation::silu) {
    if (runs.kept) {
      keep_gradients<activation, T>(a, runs);
      return add_abreast<true>(length, runs, partial, [&](int i) __attribute__((always_inline)) {
        return GradientTerms<T, Activation::none, C>{x + runs.offset[i], runs.kept + i * length, {runs.mean[i], 0, 0}};
      });
    }
  }
  return add_abreast<is_active>(length, runs, partial, [&](int i) __attribute__((always_inline)) {
    const Affine<C> affine{runs.mean[i], is_active ? runs.scale[i] : C(0), is_active ? runs.shift[i] : C(0)};
    return GradientTerms<T, activation>{x + runs.offset[i], dy + runs.offset[i], affine};
  });
}

template <class T, bool extras>
void sum_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const auto partial_of = [&](int64_t item) { return a.partial + (item - a.first_item) * 2; };
  const auto one_by_one = [&](int64_t first, int64_t last) {
    for_each_part<C>(a, first, last, [&](int64_t item, const Part& part, const ChannelStatistics<C>& s) {
      sum_part<T, extras>(a, part, s, partial_of(item));
    });
  };
  if ((extras && !is_plain(a)) || g.parts > 1 || !sums_are_short(a)) return one_by_one(begin, end);
  if (a.kept && g.positions > longest_abreast) return one_by_one(begin, end);
  with_activation_of<extras>(a, [&](auto known) {
    constexpr Activation activation = decltype(known)::value;
    RunsAbreast<C> several[2];  // the lines of one arrive while the other's are added
    int filling = 0;
    int64_t summed = begin;
    const auto sum_others = [&] {
      RunsAbreast<C>& others = several[1 - filling];
      if (others.count < abreast) return;
      if (!sum_abreast<activation, T>(a, others, partial_of(summed))) one_by_one(summed, summed + abreast);
      summed += abreast;
      others.count = 0;
    };
    for (int64_t item = begin; item < end;) {
      const int64_t statistic = item / g.sum_items, first = statistic * g.sum_items;
      const Runs runs = runs_of(g, statistic);
      const ChannelStatistics<C> s = restore_statistics<C>(a, statistic);
      several[filling].set_statistics(s);
      const Affine<C> first_affine(s, a.weight_of(runs.channel), a.bias_of(runs.channel));
      for (const int64_t stop = std::min(end, first + g.sum_items); item < stop;) {
        RunsAbreast<C>& together = several[filling];
        const int64_t run = item++ - first, offset = runs.base + run * runs.stride;
        if constexpr (activation != Activation::none) {
          const int64_t channel = runs.channel + run;
          const Affine<C> affine =
              runs.next_channel ? Affine<C>(s, a.weight_of(channel), a.bias_of(channel)) : first_affine;
          together.scale[together.count] = affine.scale;
          together.shift[together.count] = affine.shift;
        }
        if (!g.groups) {  // else it follows the one before
          fetch_beginning(static_cast<const T*>(a.x) + offset, g.positions);
          fetch_beginning(static_cast<const T*>(a.dy) + offset, g.positions);
        }
        if (together.count == 0) together.kept = kept_at<C>(a, run * g.positions);
        together.offset[together.count++] = offset;
        if (together.count < abreast) continue;
        sum_others();
        filling = 1 - filling;
        several[filling].set_statistics(s);
      }
    }
    sum_others();
    one_by_one(summed, end);
  });
}

template <class T, bool>
void merge_sums_one(const ChannelsCall& a, int64_t statistic) {
  if (sums_runs(a)) return;
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const Runs runs = runs_of(g, statistic);
  const int64_t share = g.groups ? g.channels / g.groups : 1, count = g.groups ? share : g.outer;
  const int64_t first = g.groups ? statistic * share : statistic, step = g.groups ? 1 : g.channels;
  const double reciprocal = restore_statistics<C>(a, statistic).exact_reciprocal();
  const double* partial = a.partial + (statistic * g.sum_items - a.first_item) * 2;
  double *const sums = a.sums + first, *const products = a.products + first;
  constexpr double one = 1;
  const double* const weights = a.weight ? a.weight + runs.channel : &one;
  const int64_t next_weight = a.weight ? runs.next_channel : 0;
  // in several chains: one would wait for each addition
  constexpr int chains = 4;
  double mean_g[chains] = {}, mean_gx[chains] = {};
  const auto merge = [&](auto whole_runs) {
    const auto add = [&](int64_t run, int chain) __attribute__((always_inline)) {
      double sum = partial[0], product = partial[1];
      partial += 2;
      if constexpr (!decltype(whole_runs)::value) {
        for (int64_t part = 1; part < g.parts; ++part, partial += 2) {
          sum += partial[0];
          product += partial[1];
        }
      }
      product *= reciprocal;
      sums[run * step] = sum;
      products[run * step] = product;
      const double w = weights[run * next_weight];
      mean_g[chain] += w * sum;
      mean_gx[chain] += w * product;
    };
    int64_t run = 0;
    for (; run + chains <= count; run += chains) {
#pragma GCC unroll 4
      for (int chain = 0; chain < chains; ++chain) add(run + chain, chain);
    }
    for (; run < count; ++run) add(run, 0);
  };
  g.parts == 1 ? merge(std::true_type{}) : merge(std::false_type{});
  const auto total = [](const double (&v)[chains]) { return (v[0] + v[1]) + (v[2] + v[3]); };
  const double n = count_of(a, statistic);
  a.means[statistic * 2] = total(mean_g) / n;
  a.means[statistic * 2 + 1] = total(mean_gx) / n;
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
