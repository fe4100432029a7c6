// Groups of few elements: neighbouring ones side by side, a lane each. Sums are in double.
#pragma once

#include "channels/affine.h"
#include "channels/turn.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

constexpr int64_t most_lanes = 32, fewest_lanes = 16, elements_together = fewest_lanes * most_of_small;

// Neighbouring groups of a sample, or all of several samples: what is the same for every sample of a block, and what
// these add to the gradients of the affine.
template <class T>
class SmallGroups {
 public:
  using C = Opmath<T>;
  const ChannelsCall& call;
  const ChannelsGeometry& geometry;
  const int64_t first, groups, samples;   // the first group of a sample, how many, and of how many samples at a time
  const int64_t share, positions, count;  // a group's channels, their positions, its elements
  const int64_t lanes;                    // whole vectors
  // of channel c of a lane at c * lanes + lane
  double weights[elements_together], biases[elements_together];
  double gradients[elements_together], products[elements_together];
  int64_t places[most_lanes];  // of the lanes' channels at a position

  SmallGroups(const ChannelsCall& a, int64_t first_group, int64_t most_groups, int64_t most_samples)
      : call(a),
        geometry(a.geometry),
        first(first_group),
        groups(std::min(most_groups, a.geometry.groups - first_group)),
        samples(groups < a.geometry.groups ? 1 : std::clamp<int64_t>(most_groups / groups, 1, most_samples)),
        share(a.geometry.channels / a.geometry.groups),
        positions(a.geometry.positions),
        count(a.geometry.count),
        lanes(padded(groups * samples)) {
    for (double* each : {weights, biases, gradients, products}) std::fill_n(each, share * lanes, 0.0);
    for_each_channel([&](int64_t channel, int64_t at) {
      weights[at] = a.weight_of(channel * weights_of_channel(geometry));
      biases[at] = a.bias_of(channel * weights_of_channel(geometry));
    });
    for (int64_t lane = 0; lane < groups * samples; ++lane) {
      places[lane] = lane / groups * positions * geometry.channels + lane % groups * share;
    }
  }
  // Calls body(channel, where its number of a lane is).
  template <class Body>
  void for_each_channel(const Body& body) const {
    for (int64_t lane = 0; lane < groups * samples; ++lane) {
      const int64_t group = first + (samples > 1 ? lane % groups : lane);
      for (int64_t c = 0; c < share; ++c) body(group * share + c, c * lanes + lane);
    }
  }
  // Calls body(where an element's lanes are) for each of a channel's.
  template <class Body>
  EVENKEEL_INLINE void for_each_position_of(int64_t channel, const Body& body) const {
    for (int64_t k = channel; k < count; k += share) body(k * lanes);
  }
  // Calls body(matrix of rows, offset among the lanes, columns) for each matrix of a tensor's samples from a statistic on:
  // its rows, of bits, are groups, and turned they are lanes.
  template <class Element, class Body>
  void for_each_matrix(Element* tensor, int64_t statistic, const Body& body) const {
    using U = std::remove_pointer_t<decltype(bits_of(tensor))>;
    if (!geometry.innermost || geometry.groups == 1) {
      return body(EvenRows<U>{bits_of(tensor + statistic * count), count}, 0, count);
    }
    const int64_t row = statistic / geometry.groups * positions;
    for (int64_t p = 0; p < positions; ++p) {
      U* const rows = bits_of(tensor + (row + p) * geometry.channels + first * share);
      const int64_t at = p * share * lanes;
      samples == 1 ? body(EvenRows<U>{rows, share}, at, share) : body(PlacedRows<U>{rows, places}, at, share);
    }
  }
};

// Some samples' elements of a tensor.
template <class T>
class TurnedElements {
 public:
  // not in line: the turns of all widths are most of what it would be compiled to each time
  __attribute__((noinline)) TurnedElements(const SmallGroups<T>& of, const void* tensor, int64_t statistic,
                                           int64_t samples) {
    if (of.groups * samples < of.lanes) std::memset(elements_, 0, of.count * of.lanes * sizeof(T));
    of.for_each_matrix(static_cast<const T*>(tensor), statistic, [&](const auto& rows, int64_t at, int64_t columns) {
      turn_one(rows, EvenRows{bits_of(elements_ + at), of.lanes}, of.groups * samples, columns);
    });
    widen(elements_, wide_, of.count * of.lanes);
  }
  EVENKEEL_INLINE Doubles operator()(int64_t at) const { return load_wide(values() + at); }
  EVENKEEL_INLINE Vector<Opmath<T>> narrow(int64_t at) const { return load(values() + at); }

 private:
  alignas(cache_line) T elements_[elements_together];
  Opmath<T> wide_[sizeof(T) == 2 ? elements_together : 1];
  // not a member: whoever reads it would load it anew after each store
  EVENKEEL_INLINE const Opmath<T>* values() const {
    if constexpr (sizeof(T) == 2) {
      return wide_;
    } else {
      return elements_;
    }
  }
};

// Turns some samples' results into their places.
template <class T>
__attribute__((noinline)) void turn_results(const SmallGroups<T>& of, const T* elements, int64_t statistic,
                                            int64_t samples) {
  of.for_each_matrix(static_cast<T*>(of.call.out), statistic, [&](const auto& rows, int64_t at, int64_t columns) {
    turn_one(EvenRows{bits_of(elements + at), of.lanes}, rows, columns, of.groups * samples);
  });
}

// Of some samples. result(channel, lane) gives a function of where an element's lanes from that one on are: their results.
template <class T, class Result>
EVENKEEL_INLINE void write_small(const SmallGroups<T>& of, int64_t statistic, int64_t samples, const Result& result) {
  using C = Opmath<T>;
  alignas(cache_line) T elements[elements_together];
  for (int64_t lane = 0; lane < of.groups * samples; lane += Lanes<C>::width) {
    for (int64_t c = 0; c < of.share; ++c) {
      const auto of_channel = result(c, lane);
      of.for_each_position_of(c, [&](int64_t at) { Whole<C>{at + lane}.store(elements, of_channel(at + lane)); });
    }
  }
  turn_results(of, elements, statistic, samples);
}

// The affines of a vector of lanes from one on, whose parameters are those of a channel.
template <class C>
struct LaneAffines {
  Vector<C> mean, scale, shift;
  EVENKEEL_INLINE LaneAffines(const StatisticsStrip<C>& s, const double* weights, const double* biases, int64_t lane) {
    const auto wide = [&](const auto& eight) { return Wide<C>::of([&](int64_t i) { return eight(lane + i); }); };
    const Wide<C> exact = wide([&](int64_t i) { return s.exact_reciprocal(i) * load(weights + i); });
    mean = wide([&](int64_t i) { return s.wide_mean(i); }).rounded();
    scale = exact.rounded();
    shift = (Wide<C>(biases + lane) - wide([&](int64_t i) { return s.wide_mean_rest(i); }) * exact).rounded();
  }
  EVENKEEL_INLINE Vector<C> operator()(const Vector<C>& x) const { return (x - mean) * scale + shift; }
};

// y of some samples' groups
template <Activation activation, class T>
__attribute__((flatten)) void measure_small(const SmallGroups<T>& of, int64_t statistic, int64_t samples) {
  using C = Opmath<T>;
  const ChannelsCall& a = of.call;
  const int64_t n = of.groups * samples, elements = of.count * of.lanes;
  const TurnedElements<T> x(of, a.x, statistic, samples);
  double shifts[most_lanes], sums[most_lanes], squares[most_lanes], variances[most_lanes];
  for (int64_t lane = 0; lane < n; lane += Lanes<double>::width) {
    const auto sum_about = [&](Doubles shift) {
      Doubles sum = {}, square = {};
      for (int64_t at = lane; at < elements; at += of.lanes) {
        const Doubles d = x(at) - shift;
        sum += d;
        square += d * d;
      }
      store(shifts + lane, shift);
      store(sums + lane, sum);
      store(squares + lane, square);
      return shift + sum / static_cast<double>(of.count);
    };
    // any element is near enough to the mean for floats: its square is at most `count` variances away
    const Doubles mean = sum_about(x(lane));
    if constexpr (sizeof(C) == sizeof(double)) sum_about(mean);
  }
  StatisticsStrip<C> s;
  s.conclude(a, static_cast<double>(of.count), n, shifts, sums, squares, variances);
  s.save(a, statistic, n);
  for (int64_t i = 0; i < n; ++i) static_cast<C*>(a.variance)[statistic + i] = static_cast<C>(variances[i]);
  write_small(of, statistic, samples, [&](int64_t c, int64_t lane) {
    return [&, own = LaneAffines<C>(s, of.weights + c * of.lanes, of.biases + c * of.lanes, lane)](int64_t at) {
      return activate<activation, C>(own(x.narrow(at)));
    };
  });
}

// dx of some samples' groups, and what they add to the gradients of the affine. exact: dx, and the gradient after the
// activation, are computed in double; but ReLU lets through what it let through to y.
template <Activation activation, bool exact, class T>
__attribute__((flatten)) void sum_small(SmallGroups<T>& of, int64_t statistic, int64_t samples) {
  using C = Opmath<T>;
  using V = Vector<C>;
  constexpr bool is_active = activation != Activation::none;
  constexpr bool passes_as_y = is_active && (!exact || activation == Activation::relu);
  const ChannelsCall& a = of.call;
  const double count = static_cast<double>(of.count);
  const int64_t n = of.groups * samples;
  const TurnedElements<T> x(of, a.x, statistic, samples), dy(of, a.dy, statistic, samples);
  std::conditional_t<exact, double, C> kept[is_active ? elements_together : 1];  // gradients led through the activation
  double shifts[most_lanes] = {}, slopes[most_lanes] = {}, reciprocals[most_lanes] = {};
  StatisticsStrip<C> s;
  s.restore(a, statistic, n);
  int64_t added[most_lanes] = {};  // -1 where the repair adds nothing
  for (int64_t lane = 0; lane < n; ++lane) added[lane] = -is_own(a, statistic + lane, s.at(lane));
  if (is_active && !passes_as_y && n < of.lanes) std::fill_n(kept, of.count * of.lanes, 0.0);
  if constexpr (passes_as_y) {
    for (int64_t lane = 0; lane < n; lane += Lanes<C>::width) {
      for (int64_t c = 0; c < of.share; ++c) {
        const LaneAffines<C> affine(s, of.weights + c * of.lanes, of.biases + c * of.lanes, lane);
        of.for_each_position_of(c, [&](int64_t at) {
          at += lane;
          const V upstream = through_activation<activation, C>(dy.narrow(at), affine(x.narrow(at)));
          if constexpr (exact) {
            Wide<C>(upstream).store(kept + at);
          } else {
            store(kept + at, upstream);
          }
        });
      }
    }
  }
  for (int64_t lane = 0; lane < n; lane += Lanes<double>::width) {
    const Doubles mean = s.wide_mean(lane), rest = s.wide_mean_rest(lane), reciprocal = s.exact_reciprocal(lane);
    const auto is_added = load_bytes_of<LaneMask<double>>(added + lane);
    Doubles total = {}, total_product = {};
    for (int64_t c = 0; c < of.share; ++c) {
      const int64_t channel = c * of.lanes + lane;
      const Doubles weight = load(of.weights + channel);
      Doubles sum = {}, product = {};
      of.for_each_position_of(c, [&](int64_t at) {
        const Doubles centred = (x(at + lane) - mean) - rest;
        Doubles upstream;
        if constexpr (passes_as_y) {
          upstream = load_wide(kept + at + lane);
        } else {
          upstream = dy(at + lane);
        }
        if constexpr (is_active && !passes_as_y) {
          const Doubles input = centred * reciprocal * weight + load(of.biases + channel);
          upstream = through_activation<activation, double>(upstream, input);
          store(kept + at + lane, upstream);
        }
        sum += upstream;
        product += upstream * centred;
      });
      product *= reciprocal;
      total += weight * sum;
      total_product += weight * product;
      store(of.gradients + channel, load(of.gradients + channel) + keep_lanes<double>(sum, is_added));
      store(of.products + channel, load(of.products + channel) + keep_lanes<double>(product, is_added));
    }
    // dx = ((g - mean(g)) - x_hat * bend * mean(g * x_hat)) / scale
    const Doubles along = reciprocal * s.wide_bend(lane) * (total_product / count);
    store(shifts + lane, (total / count - rest * along) * reciprocal);
    store(slopes + lane, exact ? along * reciprocal : along);
    store(reciprocals + lane, reciprocal);
  }
  if (!a.out) return;
  const auto wide = [](int64_t lane, const auto& eight) { return Wide<C>::of([&](int64_t i) { return eight(lane + i); }); };
  write_small(of, statistic, samples, [&](int64_t c, int64_t lane) {
    const Wide<C> mean = wide(lane, [&](int64_t i) { return s.wide_mean(i); });
    const Wide<C> shift(shifts + lane), slope(slopes + lane), reciprocal(reciprocals + lane);
    const Wide<C> weight = reciprocal * Wide<C>(of.weights + c * of.lanes + lane);
    if constexpr (exact) {
      return [=, &x, &dy, &kept](int64_t at) {
        const Wide<C> upstream = wide(at, [&](int64_t i) {
          if constexpr (activation == Activation::none) return dy(i);
          return load(kept + i);
        });
        const Wide<C> centred = wide(at, [&](int64_t i) { return x(i); }) - mean;
        return ((upstream * weight - shift) - centred * slope).rounded();
      };
    } else {
      return [&x, &dy, &kept, mean = mean.rounded(), weight = weight.rounded(), shift = shift.rounded(),
              reciprocal = reciprocal.rounded(), slope = slope.rounded()](int64_t at) {
        V upstream;
        if constexpr (activation == Activation::none) {
          upstream = dy.narrow(at);
        } else {
          upstream = load(kept + at);
        }
        return (upstream * weight - shift) - ((x.narrow(at) - mean) * reciprocal) * slope;
      };
    }
  });
}

// Calls body(groups, statistic, samples) for all of a block; finish(groups) when some groups of every sample are done.
template <class T, class Body, class Finish>
void for_each_small(const ChannelsCall& a, int64_t begin, int64_t end, const Body& body, const Finish& finish) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t most = most_lanes * g.count <= elements_together ? most_lanes : fewest_lanes;
  for (int64_t first = 0; first < g.groups; first += most) {
    SmallGroups<T> of(a, first, most, (end - begin) / g.groups);
    const int64_t together = of.samples * g.groups;
    for (int64_t i = begin; i < end; i += together) body(of, i + first, std::min(together, end - i) / g.groups);
    finish(of);
  }
}

template <class T>
void measure_all_small(const ChannelsCall& a, int64_t begin, int64_t end) {
  with_activation(a.options.activation, [&](auto activation) {
    for_each_small<T>(a, begin, end, [](const auto& of, int64_t statistic, int64_t samples) {
      measure_small<decltype(activation)::value>(of, statistic, samples);
    }, [](const auto&) {});
  });
}

// All of a block.
template <class T>
void sum_all_small(const ChannelsCall& a, int64_t begin, int64_t end) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t lane = begin / g.statistics_per_block * g.channels;
  double *const sums = a.sums + lane, *const products = a.products + lane;
  std::fill_n(sums, g.channels, 0.0);
  std::fill_n(products, g.channels, 0.0);
  with_activation(a.options.activation, [&](auto activation) {
    const bool exact = has_few_elements(a, begin) || !sums_are_short(a);
    for_each_small<T>(a, begin, end, [=](auto& of, int64_t statistic, int64_t samples) {
      exact ? sum_small<decltype(activation)::value, true>(of, statistic, samples)
            : sum_small<decltype(activation)::value, false>(of, statistic, samples);
    }, [&](const auto& of) {
      of.for_each_channel([&](int64_t channel, int64_t at) {
        sums[channel] += of.gradients[at];
        products[channel] += of.products[at];
      });
    });
  });
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
