// Groups of few positions whose channels lie innermost: a run of channels at each position. A vector of neighbouring
// channels is added over the positions, and from there on in double.
#pragma once

#include <algorithm>

#include "channels/affine.h"
#include "channels/phases.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// A sample. The same places of the next one are fetched meanwhile: a group leaps from run to run, which no processor
// foresees.
template <class T>
struct SampleOfRuns {
  const T *x, *dy;  // dy and out may be null
  T* out;
  int64_t statistic, share;  // its first group's, and a group's channels
  int64_t ahead;             // elements to the next sample; 0 fetches what is read anyway
  SampleOfRuns(const ChannelsCall& a, int64_t first_statistic, bool fetches)
      : x(static_cast<const T*>(a.x)),
        dy(static_cast<const T*>(a.dy)),
        out(static_cast<T*>(a.out)),
        statistic(first_statistic),
        share(a.geometry.channels / a.geometry.groups) {
    const int64_t elements = a.geometry.channels * a.geometry.positions, first = statistic * a.geometry.count;
    x += first;
    if (dy) dy += first;
    if (out) out += first;
    ahead = fetches ? elements : 0;
  }
};

// The place of a group in its sample, and the affine of its channels.
template <class T>
struct PlaceOfRuns {
  using C = Opmath<T>;
  const int64_t share, channel, row, runs;
  const double *weights, *biases;
  EVENKEEL_INLINE PlaceOfRuns(const ChannelsCall& a, const SampleOfRuns<T>& sample, int64_t statistic)
      : share(sample.share),
        channel((statistic - sample.statistic) * share),
        row(a.geometry.channels),
        runs(a.geometry.positions),
        weights(a.weights_from(channel)),
        biases(a.biases_from(channel)) {}
  template <class U>
  EVENKEEL_INLINE U* of(U* tensor, int64_t run) const {
    return tensor + run * row + channel;
  }
  template <class At>
  EVENKEEL_INLINE Vector<C> load(const At& at, const T* tensor, int64_t run, int64_t ahead) const {
    const T* const p = of(tensor, run);
    fetch(p + at.i + ahead);
    return at.load(p);
  }
  template <class At>
  EVENKEEL_INLINE void store(const At& at, T* tensor, int64_t run, int64_t ahead, const Vector<C>& v) const {
    T* const p = of(tensor, run);
    fetch_to_write(p + at.i + ahead);
    at.store(p, v);
  }
  // of a vector of channels
  template <class At>
  Wide<C> weight(const At& at) const {
    return parameter(at, weights, 1.0);
  }
  template <class At>
  Wide<C> bias(const At& at) const {
    return parameter(at, biases, 0.0);
  }

 private:
  template <class At>
  static Wide<C> parameter(const At& at, const double* values, double otherwise) {
    Wide<C> v;
    for (int i = 0; i < Wide<C>::parts; ++i) {
      v.part[i] = values ? EVENKEEL_ISA::load(values + at.i + i * Lanes<double>::width) : Doubles{} + otherwise;
    }
    return keep_wide(at, v);
  }
};

// The sums of a group's differences from a shift, and of their squares: sums of the compute dtype are of a few runs.
template <class T>
struct SumsOfRuns {
  using C = Opmath<T>;
  using V = Vector<C>;
  double shift, sum, square;
  EVENKEEL_INLINE SumsOfRuns(const ChannelsCall& a, const SampleOfRuns<T>& sample, const PlaceOfRuns<T>& place) {
    const double count = static_cast<double>(a.geometry.count);
    const int64_t few = std::min<int64_t>(place.share, Lanes<C>::width);
    double first = 0;
    for_each_position<C>(few, [&](auto at) { first = sum_of_lanes(as_doubles(at.load(place.of(sample.x, 0)))); });
    add(sample, place, static_cast<C>(first / static_cast<double>(few)));
    if (!is_good_shift(count, sum, square)) add(sample, place, static_cast<C>(shift + sum / count));
  }

 private:
  EVENKEEL_INLINE void add(const SampleOfRuns<T>& sample, const PlaceOfRuns<T>& place, C about) {
    Doubles total = {}, total_square = {};
    for_each_position<C>(place.share, [&](auto at) __attribute__((always_inline)) {
      V some{}, squares{};
      for (int64_t run = 0; run < place.runs; ++run) {
        const V d = at.keep(place.load(at, sample.x, run, sample.ahead) - about);
        some += d;
        squares += d * d;
      }
      total += as_doubles(some);
      total_square += as_doubles(squares);
    });
    shift = static_cast<double>(about);
    sum = sum_of_lanes(total);
    square = sum_of_lanes(total_square);
  }
};

// y of a group of a sample.
template <Activation activation, class T, class C>
EVENKEEL_INLINE void write_output(const SampleOfRuns<T>& sample, const PlaceOfRuns<T>& place,
                                  const ChannelStatistics<C>& s) {
  for_each_position<C>(place.share, [&](auto at) __attribute__((always_inline)) {
    const Wide<C> exact = place.weight(at) * s.exact_reciprocal();
    const Vector<C> scale = exact.rounded();
    const Vector<C> shift = (place.bias(at) - exact * static_cast<double>(s.mean_rest)).rounded();
    for (int64_t run = 0; run < place.runs; ++run) {
      const Vector<C> centred = at.load(place.of(sample.x, run)) - s.mean;
      place.store(at, sample.out, run, sample.ahead, activate<activation, C>(centred * scale + shift));
    }
  });
}

// The numbers in which a group's gradient is computed: the compute dtype, or double where that may not hold it.
template <class C, bool exact>
struct GroupNumbers {
  using Scalar = C;
  using Number = Vector<C>;
  // x - mean; what the mean lost in rounding counts by way of the other factors
  static Number centred(Number x, const ChannelStatistics<C>& s) { return x - s.mean; }
  static double mean_rest(const ChannelStatistics<C>& s) { return static_cast<double>(s.mean_rest); }
  static Number of(const Wide<C>& v) { return v.rounded(); }
  static Vector<C> rounded(Number v) { return v; }
};
template <class C>
struct GroupNumbers<C, true> {
  using Scalar = double;
  using Number = Wide<C>;
  static Number centred(Vector<C> x, const ChannelStatistics<C>& s) { return wide_centred(Wide<C>(x), s); }
  static double mean_rest(const ChannelStatistics<C>&) { return 0; }
  static const Number& of(const Wide<C>& v) { return v; }
  static Vector<C> rounded(const Number& v) { return v.rounded(); }
};

// dx of a group of a sample, and what it adds to the sums of the channels.
template <class T, Activation activation, bool exact>
class GroupRuns {
 public:
  using C = Opmath<T>;
  using Numbers = GroupNumbers<C, exact>;
  using Number = typename Numbers::Number;
  using Scalar = typename Numbers::Scalar;
  // slot: among the groups that are treated together
  EVENKEEL_INLINE GroupRuns(const ChannelsCall& a, const SampleOfRuns<T>& sample, int64_t statistic, int64_t slot)
      : call_(a),
        sample_(sample),
        place_(a, sample, statistic),
        statistic_(statistic),
        slot_(slot),
        s_(restore_statistics<C>(a, statistic)),
        exact_reciprocal_(s_.exact_reciprocal()),
        reciprocal_(static_cast<Scalar>(exact_reciprocal_)),
        rest_(Numbers::mean_rest(s_)) {}
  bool is_own() const { return EVENKEEL_ISA::is_own(call_, statistic_, s_); }

  EVENKEEL_INLINE void sum(double* gradients, double* products, double (&sums)[2]) const {
    Doubles total = {}, total_product = {};
    for_each_position<C>(place_.share, [&](auto at) __attribute__((always_inline)) {
      ChannelSums found = add_runs(at, call_.kept);
      if constexpr (!exact && sizeof(C) < sizeof(double)) {
        if (!sums_hold(found.sum, found.product)) found = add_in_double(call_, sample_, statistic_, slot_, at);
      }
      const Wide<C> weight = place_.weight(at);
      for (int i = 0; i < parts_of(at); ++i) {
        const Whole<double> lanes{place_.channel + at.i + i * Lanes<double>::width};
        lanes.store(gradients, lanes.load(gradients) + found.sum.part[i]);
        lanes.store(products, lanes.load(products) + found.product.part[i]);
        total += found.sum.part[i] * weight.part[i];
        total_product += found.product.part[i] * weight.part[i];
      }
    });
    sums[0] = sum_of_lanes(total);
    sums[1] = sum_of_lanes(total_product);
  }

  // The sums over the runs of dy and of dy * x_hat, of a vector of channels.
  struct ChannelSums {
    Wide<C> sum, product;
  };
  // out of line, for the registers of what is nearly always done
  template <class At>
  __attribute__((noinline)) static ChannelSums add_in_double(const ChannelsCall& a, SampleOfRuns<T> sample,
                                                             int64_t statistic, int64_t slot, At at) {
    const auto [sum, product] = GroupRuns<T, activation, true>(a, sample, statistic, slot).add_runs(at, nullptr);
    return {sum, product};
  }
  template <class At>
  EVENKEEL_INLINE ChannelSums add_runs(const At& at, void* kept_gradients) const {
    const ChannelAffine affine(*this, at);
    Number sum{}, product{};
    for (int64_t run = 0; run < place_.runs; ++run) {
      const Vector<C> x = place_.load(at, sample_.x, run, sample_.ahead);
      const Number centred = Numbers::centred(x, s_);
      const Number upstream = affine.through(place_.load(at, sample_.dy, run, sample_.ahead), x);
      if (is_active && kept_gradients) store_bytes_of(kept(at, run), upstream);
      sum += upstream;
      product += upstream * (centred * reciprocal_);
    }
    // the lanes past the end are the next group's
    const Wide<C> wide_sum = keep_wide(at, Wide<C>(sum));
    return {wide_sum, keep_wide(at, Wide<C>(product) - wide_sum * (rest_ * exact_reciprocal_))};
  }

  // dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale
  EVENKEEL_INLINE void write(const double (&sums)[2]) const {
    const double n = static_cast<double>(call_.geometry.count);
    const double along = static_cast<double>(s_.bend) * (sums[1] / n) * exact_reciprocal_;
    const Scalar slope = static_cast<Scalar>(along);
    const Scalar shift = static_cast<Scalar>((sums[0] / n - rest_ * along) * exact_reciprocal_);
    for_each_position<C>(place_.share, [&](auto at) __attribute__((always_inline)) {
      const ChannelAffine affine(*this, at);
      for (int64_t run = 0; run < place_.runs; ++run) {
        const Vector<C> x = at.load(place_.of(sample_.x, run));
        const Number centred = Numbers::centred(x, s_);
        const Number upstream = is_active && call_.kept ? load_bytes_of<Number>(kept(at, run))
                                                        : affine.through(at.load(place_.of(sample_.dy, run)), x);
        const Number gradient = (upstream * affine.scale - shift) - centred * reciprocal_ * slope;
        place_.store(at, sample_.out, run, sample_.ahead, Numbers::rounded(gradient));
      }
    });
  }

 private:
  static constexpr bool is_active = activation != Activation::none;
  // The affine of a vector of channels. ReLU lets through what it let through to y.
  struct ChannelAffine {
    using Inputs = GroupNumbers<C, exact && activation != Activation::relu>;
    using Input = typename Inputs::Number;
    const ChannelStatistics<C>& s;
    Number scale;
    Input input_scale, shift;
    template <class At>
    EVENKEEL_INLINE ChannelAffine(const GroupRuns& group, const At& at) : s(group.s_) {
      const Wide<C> wide_scale = group.place_.weight(at) * group.exact_reciprocal_;
      scale = Numbers::of(wide_scale);
      if constexpr (!is_active) return;
      input_scale = Inputs::of(wide_scale);
      shift = Inputs::of(group.place_.bias(at) - wide_scale * Inputs::mean_rest(s));
    }
    EVENKEEL_INLINE Number through(const Vector<C>& upstream, const Vector<C>& x) const {
      if constexpr (!is_active) return Number(upstream);
      const Input input = Inputs::centred(x, s) * input_scale + shift;
      return Number(through_activation<activation, C>(Input(upstream), input));
    }
  };
  // where a gradient led through the activation is kept
  template <class At>
  Scalar* kept(const At& at, int64_t run) const {
    return static_cast<Scalar*>(call_.kept) + (slot_ * place_.runs + run) * padded(place_.share) + at.i;
  }
  const ChannelsCall& call_;
  const SampleOfRuns<T> sample_;
  const PlaceOfRuns<T> place_;
  const int64_t statistic_, slot_;
  const ChannelStatistics<C> s_;
  const double exact_reciprocal_;
  const Scalar reciprocal_;
  const double rest_;
};

// Calls body(sample, first, groups) for neighbouring groups of each sample, that are treated together.
template <class T, class Body>
void for_each_groups_together(const ChannelsCall& a, int64_t begin, int64_t end, const Body& body) {
  const int64_t groups = a.geometry.groups, together = groups_together(a.geometry);
  for (int64_t first = begin; first < end; first += groups) {
    const SampleOfRuns<T> sample(a, first, a.fetched || first + groups < end);
    for (int64_t i = 0; i < groups; i += together) body(sample, first + i, std::min(together, groups - i));
  }
}

// The statistics of neighbouring groups of a sample, and their results.
template <class T, bool extras>
__attribute__((flatten)) void measure_runs(const ChannelsCall& a, const SampleOfRuns<T>& sample, int64_t first,
                                           int64_t groups) {
  using C = Opmath<T>;
  constexpr int64_t most = most_groups_together;
  double shifts[most] = {}, sums[most] = {}, squares[most] = {}, variances[most];
  for (int64_t i = 0; i < groups; ++i) {
    const SumsOfRuns<T> found(a, sample, PlaceOfRuns<T>(a, sample, first + i));
    shifts[i] = found.shift;
    sums[i] = found.sum;
    squares[i] = found.square;
  }
  StatisticsStrip<C> statistics;
  statistics.conclude(a, static_cast<double>(a.geometry.count), groups, shifts, sums, squares, variances);
  statistics.save(a, first, groups);
  for (int64_t i = 0; i < groups; ++i) static_cast<C*>(a.variance)[first + i] = static_cast<C>(variances[i]);
  with_activation_of<extras>(a, [&](auto activation) {
    for (int64_t i = 0; i < groups; ++i) {
      write_output<decltype(activation)::value>(sample, PlaceOfRuns<T>(a, sample, first + i), statistics.at(i));
    }
  });
}

template <class T, bool extras>
void measure_all_runs(const ChannelsCall& a, int64_t begin, int64_t end) {
  for_each_groups_together<T>(a, begin, end, [&](auto& sample, int64_t first, int64_t groups) {
    measure_runs<T, extras>(a, sample, first, groups);
  });
}

// The sums of a block's columns: of dy, and a stride further of dy * x_hat. A row's last vector may reach past them.
inline int64_t column_stride(const ChannelsGeometry& g) { return padded(g.width) + Lanes<float>::width; }

// dx of neighbouring groups of a sample, and what they add to the sums of the channels.
template <class T, Activation activation, bool exact>
__attribute__((flatten)) void sum_runs_together(const ChannelsCall& a, const SampleOfRuns<T>& sample, int64_t first,
                                                int64_t groups, double* gradients, double* products) {
  using Group = GroupRuns<T, activation, exact>;
  double sums[most_groups_together][2];
  bool own[most_groups_together];
  for (int64_t i = 0; i < groups; ++i) {
    const Group group(a, sample, first + i, i);
    own[i] = group.is_own();
    if (own[i]) group.sum(gradients, products, sums[i]);
  }
  for (int64_t i = 0; a.out && i < groups; ++i) {
    if (own[i]) Group(a, sample, first + i, i).write(sums[i]);
  }
}

// All of a block.
template <class T, bool extras, bool exact>
void sum_runs(const ChannelsCall& a, int64_t begin, int64_t end) {
  const ChannelsGeometry& g = a.geometry;
  double *const gradients = static_cast<double*>(a.factors), *const products = gradients + column_stride(g);
  std::memset(gradients, 0, 2 * column_stride(g) * sizeof(double));
  with_activation_of<extras>(a, [&](auto activation) {
    for_each_groups_together<T>(a, begin, end, [&](const auto& sample, int64_t first, int64_t groups) {
      sum_runs_together<T, decltype(activation)::value, exact>(a, sample, first, groups, gradients, products);
    });
  });
  const int64_t lane = begin / g.statistics_per_block * g.channels;
  std::copy_n(gradients, g.channels, a.sums + lane);
  std::copy_n(products, g.channels, a.products + lane);
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
