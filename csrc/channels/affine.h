// The affine of a statistic and its gradient: in the compute dtype, or in double where terms may cancel.
#pragma once

#include "channels/statistics.h"

namespace evenkeel::EVENKEEL_ISA {

// y = (x - mean) * scale + shift, of fewer roundings than the steps it stands for. What the mean lost in rounding is in
// the shift: the elements are no finer than an ulp of the mean, so against their spread it is small.
template <class C>
struct Affine {
  C mean, scale, shift;
  Affine(C m, C factor, C addend) : mean(m), scale(factor), shift(addend) {}
  Affine(const ChannelStatistics<C>& s, double weight, double bias) : mean(s.mean) {
    const double exact = s.exact_reciprocal() * weight;
    scale = static_cast<C>(exact);
    shift = static_cast<C>(bias - static_cast<double>(s.mean_rest) * exact);
  }
  Vector<C> operator()(Vector<C> x) const { return (x - mean) * scale + shift; }
};

// Factors of the differences from the mean: weight / scale in y, and bend * mean(g * x_hat) / scale in dx.
template <class C>
C scale_of(const ChannelStatistics<C>& s, double weight) {
  return static_cast<C>(s.exact_reciprocal() * weight);
}
template <class C>
double exact_slope_of(const ChannelStatistics<C>& s, double mean_gx) {
  return s.exact_reciprocal() * static_cast<double>(s.bend) * mean_gx;
}

// dx = g * weight - shift - x_hat * slope, with everything over the scale and x_hat from the rounded mean.
template <class C>
struct Projection {
  using V = Vector<C>;
  C mean, reciprocal, weight, shift, slope;
  Projection(const ChannelStatistics<C>& s, double w, double mean_g, double mean_gx)
      : mean(s.mean), reciprocal(s.reciprocal), weight(scale_of(s, w)) {
    const double exact = s.exact_reciprocal(), along = exact_slope_of(s, mean_gx);
    slope = static_cast<C>(along);
    shift = static_cast<C>((mean_g - static_cast<double>(s.mean_rest) * along) * exact);
  }
  V operator()(V g, V x) const { return (*this)(V{} + weight, g, x); }
  V operator()(V own_weight, V g, V x) const { return (g * own_weight - shift) - ((x - mean) * reciprocal) * slope; }
};

// Whether float holds the scales of a statistic's weights, if there are any.
inline bool holds_scales(const ChannelsCall& a, int64_t statistic, const ChannelStatistics<float>& s) {
  const ChannelsGeometry& g = a.geometry;
  if (!has_scales(a) || holds_scale(s, a.smallest_weight, a.largest_weight)) return true;
  const int64_t share = g.groups ? g.channels / g.groups : 1, columns = g.walk == Walk::columns ? g.fold : share;
  const int64_t first = statistic % (g.groups ? g.groups : g.channels) * columns;
  for (int64_t i = first; i < first + columns; ++i) {
    const double weight = std::abs(a.weight_of(i * weights_of_channel(g)));
    if (is_normal(weight) && !holds_scale(s, weight, weight)) return false;
  }
  return true;
}
inline bool holds_scales(const ChannelsCall&, int64_t, const ChannelStatistics<double>&) { return true; }

// Whether a walk makes a statistic's gradients, and not their repair. NaN spoils them either way.
template <class C>
bool is_own(const ChannelsCall& a, int64_t statistic, const ChannelStatistics<C>& s) {
  return is_nan(s) || (in_range(s) && holds_scales(a, statistic, s));
}

// Whether the sums of the backward may be of floats in their shortest parts. Where few channels share a parameter's
// gradient, all of them may by chance be far smaller than their terms, and the terms' roundings show.
inline bool sums_are_short(const ChannelsCall& a) {
  constexpr int64_t many_channels = 16;
  return a.dtype == DType::float64 || a.geometry.channels >= many_channels;
}

// Whether sums of floats hold: none left float's range, nor did terms that add up to so little leave it below.
template <class C>
bool sums_hold(double gradient, double product) {
  if constexpr (sizeof(C) == sizeof(double)) return true;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const bool finite = std::abs(gradient) < infinity && std::abs(product) < infinity;
  return finite & ((std::abs(product) >= 0x1p-90) | ((product == 0) & (gradient == 0)));
}

// Whether surely all sums hold, by their exponents, or are pairs of zeros as where an activation lets nothing through:
// without a comparison g++ takes vectors of every instruction set.
inline bool all_hold(const double* gradient, const double* product, int64_t lanes) {
  constexpr int64_t smallest = 1023 - 90, largest = 2046;
  int64_t beyond = 0;  // negative where an exponent is
  for (int64_t i = 0; i < lanes; ++i) {
    const uint64_t product_bits = bits_as<uint64_t>(product[i]), gradient_bits = bits_as<uint64_t>(gradient[i]);
    const auto of_product = static_cast<int64_t>(product_bits >> 52 & 0x7ff);
    const auto of_gradient = static_cast<int64_t>(gradient_bits >> 52 & 0x7ff);
    const uint64_t either = (product_bits | gradient_bits) << 1;  // 0 where both are
    const auto is_any = static_cast<int64_t>(either | (0 - either));  // negative else
    beyond |= ((of_product - smallest) & is_any) | (largest - of_product) | (largest - of_gradient);
  }
  return beyond >= 0;
}

// Whether (x - mean) * scale + bias can be far smaller than its terms, which with statistics of this very input it
// cannot, or float does not hold the scale.
template <class C>
bool may_cancel(const ChannelStatistics<C>& s, double weight, double bias) {
  const double size = std::abs(weight);
  return std::abs(static_cast<double>(s.mean) * static_cast<double>(s.reciprocal)) > 4 || std::abs(bias) > 4 * size ||
         (is_normal(weight) && !holds_scale(s, size, size));
}

template <class C>
inline Vector<C> size_of(Vector<C> v) {
  return keep_lanes<C>(v, ~bits_as<LaneMask<C>>(-Vector<C>{}));
}
// The same of eight neighbouring statistics from one on.
template <class C>
LaneMask<double> may_cancel(const StatisticsStrip<C>& s, int64_t first, Doubles weight, Doubles bias) {
  const Doubles size = size_of<double>(weight);
  LaneMask<double> lanes = (size_of<double>(load_wide(s.mean + first) * load_wide(s.reciprocal + first)) > 4.0) |
                           (size_of<double>(bias) > 4.0 * size);
  if constexpr (sizeof(C) < sizeof(double)) {
    const Doubles scale = size * s.exact_reciprocal(first);
    const LaneMask<double> normal = (size >= smallest_normal) & (size < 0x1p128);
    lanes |= normal & ((scale < smallest_normal) | (scale > 0x1p127));
  }
  return lanes;
}

// A gradient's product with the differences from the exact mean, of that from the rounded one and of what this lost. The
// loss is none where an infinite gradient has made the product infinite.
inline Doubles about_exact_mean(Doubles product, Doubles rest, Doubles gradient) {
  const Doubles lost = rest * gradient;
  return product - keep_lanes<double>(lost, size_of<double>(lost) < std::numeric_limits<double>::infinity());
}
inline double about_exact_mean(double product, double rest, double gradient) {
  const double lost = rest * gradient;
  return std::isfinite(lost) ? product - lost : product;
}

// A vector as doubles, lane by lane.
template <class C>
struct Wide {
  static constexpr int parts = Lanes<C>::width / Lanes<double>::width;
  Doubles part[parts];
  Wide() = default;
  explicit Wide(Vector<C> v) {
    if constexpr (parts == 1) {
      part[0] = v;
    } else {
      widen(v, part);
    }
  }
  explicit Wide(const double* values) {
    for (int i = 0; i < parts; ++i) part[i] = load(values + i * Lanes<double>::width);
  }
  // of eight(i), eight lanes from i on
  template <class Eight>
  EVENKEEL_INLINE static Wide of(const Eight& eight) {
    Wide v;
    for (int i = 0; i < parts; ++i) v.part[i] = eight(i * Lanes<double>::width);
    return v;
  }
  void store(double* values) const {
    for (int i = 0; i < parts; ++i) store_bytes_of(values + i * Lanes<double>::width, part[i]);
  }
  Vector<C> rounded() const {
    if constexpr (parts == 1) {
      return part[0];
    } else {
      return as_floats(part);
    }
  }
  Doubles sum() const {
    if constexpr (parts == 1) {
      return part[0];
    } else {
      return part[0] + part[1];
    }
  }
  EVENKEEL_INLINE Wide& operator+=(const Wide& other) {
    for (int i = 0; i < parts; ++i) part[i] += other.part[i];
    return *this;
  }
  EVENKEEL_INLINE friend Wide operator+(Wide a, const Wide& b) { return a += b; }
  EVENKEEL_INLINE friend Wide operator-(Wide a, const Wide& b) {
    for (int i = 0; i < parts; ++i) a.part[i] -= b.part[i];
    return a;
  }
  EVENKEEL_INLINE friend Wide operator-(Wide a, double b) {
    for (auto& each : a.part) each -= b;
    return a;
  }
  EVENKEEL_INLINE friend Wide operator*(Wide a, const Wide& b) {
    for (int i = 0; i < parts; ++i) a.part[i] *= b.part[i];
    return a;
  }
  EVENKEEL_INLINE friend Wide operator*(Wide a, double b) {
    for (auto& each : a.part) each *= b;
    return a;
  }
  EVENKEEL_INLINE friend Wide operator+(Wide a, double b) {
    for (auto& each : a.part) each += b;
    return a;
  }
};

// The upstream gradient times the activation's slope, in double.
template <Activation activation, class C>
EVENKEEL_INLINE Wide<C> through_activation(Wide<C> upstream, const Wide<C>& input) {
  for (int i = 0; i < Wide<C>::parts; ++i) {
    upstream.part[i] = through_activation<activation, double>(upstream.part[i], input.part[i]);
  }
  return upstream;
}

template <class C>
inline Wide<C> through_activation(const Wide<C>& upstream, const Wide<C>& input, Activation activation) {
  return with_activation(
      activation, [&](auto known) { return through_activation<decltype(known)::value, C>(upstream, input); });
}

// What is read at a position; floats as doubles at once, where a register of them would be taken apart.
template <class C, class At, class T>
EVENKEEL_INLINE Wide<C> load_as_doubles(const At& at, const T* p) {
  if constexpr (std::is_same_v<At, Whole<float>> && std::is_same_v<T, float>) {
    return Wide<C>::of([&](int64_t i) { return load_wide(p + at.i + i); });
  } else {
    return Wide<C>(at.load(p));
  }
}

// The lanes whose sums floats do not hold.
inline LaneMask<double> lanes_lost(Doubles gradient, Doubles product) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Doubles g = size_of<double>(gradient), p = size_of<double>(product);
  return ~((g < infinity) & (p < infinity) & ((p >= 0x1p-90) | ((p == 0.0) & (g == 0.0))));
}
// The same of a vector of sums.
template <class C>
inline bool sums_hold(const Wide<C>& gradient, const Wide<C>& product) {
  LaneMask<double> lost{};
  for (int i = 0; i < Wide<C>::parts; ++i) lost |= lanes_lost(gradient.part[i], product.part[i]);
  return !any(lost);
}

// 0 in the lanes past the end.
template <class C>
inline Wide<C> keep_wide(const Whole<C>&, Wide<C> v) {
  return v;
}
template <class C>
inline Wide<C> keep_wide(const Rest<C>& at, Wide<C> v) {
  for (int i = 0; i < Wide<C>::parts; ++i) {
    v.part[i] = keep_lanes<double>(v.part[i], lanes_below<double>(at.count - i * Lanes<double>::width));
  }
  return v;
}

// Parts of a vector in which there are elements.
template <class C>
constexpr int parts_of(const Whole<C>&) {
  return Wide<C>::parts;
}
template <class C>
inline int parts_of(const Rest<C>& at) {
  return at.count > Lanes<double>::width ? Wide<C>::parts : 1;
}

// The differences from the mean, rounded as doubles are.
template <class C>
inline Wide<C> wide_centred(Wide<C> v, const ChannelStatistics<C>& s) {
  if constexpr (Wide<C>::parts == 1) return Wide<C>((v.part[0] - s.mean) - s.mean_rest);
  const double mean = s.exact_mean();
  for (auto& part : v.part) part -= mean;
  return v;
}

// With few elements a gradient may by chance be far smaller than the terms that it is the difference of, and their
// float roundings show: then it is computed in double.
inline bool has_few_elements(const ChannelsCall& a, int64_t statistic) {
  return !a.remembered && count_of(a, statistic) <= computed_in_double;
}
// Where statistics are given, only SiLU's slope is at stake, near where it is 0, which 16 bits do not show. By positions: a
// sample's gradient must not depend on the batch.
inline bool has_precise_slope(const ChannelsCall& a) {
  return a.remembered && a.options.activation == Activation::silu && a.dtype == DType::float32 &&
         a.geometry.positions <= computed_in_double;
}

// total[i] += v[i]
template <class C>
inline void add_lanes(const Wide<C>& v, double* total) {
  for (int i = 0; i < Wide<C>::parts; ++i) {
    double* at = total + i * Lanes<double>::width;
    store(at, load(at) + v.part[i]);
  }
}

}  // namespace evenkeel::EVENKEEL_ISA
