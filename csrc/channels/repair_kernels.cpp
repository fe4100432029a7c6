// What every walk needs besides: remembered statistics, the rare ones outside float's range, gradients of the affine,
// converted parameters. Compiled once per instruction set.
#include "channels/factors.h"
#include "channels/phases.h"
#include "channels/turn.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// Calls body(offset, lane, affine) for every valid element of a statistic; affine indexes weight and bias.
template <class Body>
void for_each_element(const ChannelsCall& a, int64_t statistic, const Body& body) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t share = g.groups ? g.channels / g.groups : 1, runs = g.groups ? share : g.outer;
  if (g.innermost) {
    const int64_t row = statistic / g.groups * g.positions, first = statistic % g.groups * share;
    const int64_t block = statistic / g.statistics_per_block;
    for (int64_t i = 0; i < g.count; ++i) {
      const int64_t channel = first + i % share;
      body((row + i / share) * g.channels + channel, block * g.channels + channel, channel);
    }
    return;
  }
  if (g.walk == Walk::groups) {
    const int64_t first = statistic % g.groups * g.count, block = statistic / g.statistics_per_block;
    for (int64_t i = 0; i < g.count; ++i) {
      body(statistic * g.count + i, block * g.channels + (first + i) / g.per_channel, first + i);
    }
    return;
  }
  if (g.walk == Walk::columns) {
    const int64_t outer = statistic / g.statistics_per_block, first = statistic % g.statistics_per_block * g.fold;
    const int64_t lanes = g.lanes_of_row, each = g.per_channel;
    for (int64_t row = outer * g.rows; row < (outer + 1) * g.rows; ++row) {
      if (a.mask && !a.mask[row]) continue;
      for (int64_t start = first; start < lanes; start += g.channels) {
        for (int64_t i = start * each; i < (start + g.fold) * each; ++i) {
          body(row * g.row_stride + i, outer * lanes + i / each, i / each);
        }
      }
    }
    return;
  }
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t lane = g.groups ? statistic * share + run : run * g.channels + statistic;
    const uint8_t* mask = a.mask ? a.mask + lane / g.channels * g.positions : nullptr;
    for (int64_t i = 0; i < g.positions; ++i) {
      if (!mask || mask[i]) body(lane * g.positions + i, lane, lane % g.channels);
    }
  }
}

ChannelStatistics<double> measure_in_double(const ChannelsCall& a, int64_t statistic, const auto* x,
                                            double* variance) {
  const double n = count_of(a, statistic);
  MergedSums merged;
  double total = 0, first = 0;
  bool started = false;
  for_each_element(a, statistic, [&](int64_t offset, int64_t, int64_t) {
    if (!started) first = to_double(x[offset]);
    started = true;
    total += to_double(x[offset]) - first;
  });
  merged.count = n;
  merged.shift = first + total / n;
  for_each_element(a, statistic, [&](int64_t offset, int64_t, int64_t) {
    const double d = to_double(x[offset]) - merged.shift;
    merged.sum += d;
    merged.square += d * d;
  });
  return conclude<double>(merged, a, variance);
}

double normalized_in_double(double x, const ChannelStatistics<double>& s) {
  return ((x - s.mean) - s.mean_rest) * s.reciprocal;
}

// The affine of a statistic outside float's range, and the activation after it; in vectors of one element.
class WideAffine {
 public:
  explicit WideAffine(const ChannelsCall& a) : call_(a) {}
  double output(double x_hat, int64_t affine) const {
    return activate<double>(Doubles{} + input(x_hat, affine), call_.options.activation)[0];
  }
  double gradient(double upstream, double x_hat, int64_t affine) const {
    const Doubles wide_input = Doubles{} + input(x_hat, affine);
    return through_activation<double>(Doubles{} + upstream, wide_input, call_.options.activation)[0];
  }

 private:
  double input(double x_hat, int64_t affine) const {
    return x_hat * call_.weight_of(affine) + call_.bias_of(affine);
  }
  const ChannelsCall& call_;
};

template <class T>
void repair_statistic(const ChannelsCall& a, int64_t statistic) {
  const T* x = static_cast<const T*>(a.x);
  const WideAffine affine_of(a);
  double variance;
  const ChannelStatistics<double> s = measure_in_double(a, statistic, x, &variance);
  if (is_nan(s) && is_nan(restore_statistics<float>(a, statistic))) return;  // as written
  for_each_element(a, statistic, [&](int64_t offset, int64_t, int64_t affine) {
    const double v = affine_of.output(normalized_in_double(to_double(x[offset]), s), affine);
    narrow(static_cast<T*>(a.out) + offset, &v, 1);
  });
  const float mean = static_cast<float>(s.mean);
  const float reciprocal = static_cast<float>(s.reciprocal);
  save_statistics<float>(a, statistic, {mean, static_cast<float>((s.mean - mean) + s.mean_rest), reciprocal,
                                        static_cast<float>(s.reciprocal - static_cast<double>(reciprocal)),
                                        static_cast<float>(s.bend)});
  static_cast<float*>(a.variance)[statistic] = static_cast<float>(variance);
}

template <class T>
void repair_gradient_of(const ChannelsCall& a, int64_t statistic) {
  const T *x = static_cast<const T*>(a.x), *dy = static_cast<const T*>(a.dy);
  const WideAffine affine_of(a);
  const double n = count_of(a, statistic);
  double variance, mean_g = 0, mean_gx = 0;
  const ChannelStatistics<double> s = measure_in_double(a, statistic, x, &variance);
  const auto x_hat_at = [&](int64_t offset) { return normalized_in_double(to_double(x[offset]), s); };
  const auto upstream_at = [&](int64_t offset, int64_t affine) {
    return affine_of.gradient(to_double(dy[offset]), x_hat_at(offset), affine);
  };
  if (a.geometry.walk != Walk::groups) {  // there others have added to these sums too
    for_each_element(a, statistic, [&](int64_t, int64_t lane, int64_t) {
      a.sums[lane] = a.products[lane] = 0;
    });
  }
  for_each_element(a, statistic, [&](int64_t offset, int64_t lane, int64_t affine) {
    const double upstream = upstream_at(offset, affine), x_hat = x_hat_at(offset);
    const double g = upstream * a.weight_of(affine);
    a.sums[lane] += upstream;
    a.products[lane] += upstream * x_hat;
    mean_g += g;
    mean_gx += g * x_hat;
  });
  if (!a.out) return;
  mean_g /= n;
  mean_gx /= n;
  for_each_element(a, statistic, [&](int64_t offset, int64_t, int64_t affine) {
    const double g = upstream_at(offset, affine) * a.weight_of(affine);
    const double v = ((g - mean_g) - x_hat_at(offset) * s.bend * mean_gx) * s.reciprocal;
    narrow(static_cast<T*>(a.out) + offset, &v, 1);
  });
}

// Whether float arithmetic surely holds all of neighbouring statistics, with any of the weights.
bool all_in_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  constexpr float rounding = 1 + 0x1p-20f;  // of a reciprocal, and of these limits
  const float least = static_cast<float>(std::max(smallest_in_range, smallest_normal / a.smallest_weight)) * rounding;
  const float most = static_cast<float>(std::min(largest_in_range, 0x1p127 / a.largest_weight)) / rounding;
  const int64_t width = a.statistics_width();
  const float* saved = static_cast<const float*>(a.statistics) + begin * width;
  int outside = 0;
  for (int64_t i = begin; i < end; ++i, saved += width) {
    const float reciprocal = saved[2];
    outside |= !(reciprocal >= least) | !(reciprocal <= most);
  }
  return !outside;
}

// Calls body(value of x's type, statistic) for those that float arithmetic cannot hold.
template <class Body>
void for_each_out_of_range(const ChannelsCall& a, int64_t begin, int64_t end, const Body& body) {
  if (a.remembered || a.dtype == DType::float64 || all_in_range(a, begin, end)) return;
  for (int64_t statistic = begin; statistic < end; ++statistic) {
    const auto s = restore_statistics<float>(a, statistic);
    if (a.dy ? is_own(a, statistic, s) : in_range(s) && holds_scales(a, statistic, s)) continue;
    with_floating(a.dtype, [&](auto t) {
      if constexpr (sizeof(t) < sizeof(double)) body(t, statistic);
    });
  }
}

void repair(const ChannelsCall& a, int64_t begin, int64_t end) {
  for_each_out_of_range(a, begin, end, [&](auto t, int64_t statistic) { repair_statistic<decltype(t)>(a, statistic); });
}

void repair_gradient(const ChannelsCall& a, int64_t begin, int64_t end) {
  for_each_out_of_range(a, begin, end, [&](auto t, int64_t index) { repair_gradient_of<decltype(t)>(a, index); });
}

template <class C>
bool remember_channels(const ChannelsCall& a, const double* mean, const double* variance) {
  const Factors<C> factors = lane_factors<C>(a, 0);
  StatisticsStrip<C> s;
  uint8_t any = 0;
  for (int64_t first = 0; first < a.geometry.channels; first += longest_strip) {
    const int64_t n = std::min(longest_strip, a.geometry.channels - first);
    s.set_means(mean + first, n);
    s.set_scales(variance + first, n, a.options.eps, a.options.eps_mode);
    if (a.statistics) s.save(a, first, n);
    lane_factors<C>(a, 0, first).set_remembered(s, n, a.weights_from(first), a.biases_from(first));
    for (int64_t i = first; i < first + n; ++i) any |= factors.cancels[i];
  }
  if (a.variance) {
    C* const variances = static_cast<C*>(a.variance);
    for (int64_t i = 0; i < a.geometry.channels; ++i) variances[i] = static_cast<C>(variance[i]);
  }
  return any;
}

bool remember(const ChannelsCall& a, const double* mean, const double* variance) {
  return a.dtype == DType::float64 ? remember_channels<double>(a, mean, variance)
                                   : remember_channels<float>(a, mean, variance);
}

void finish(const ChannelsCall& a, int which, int64_t channels, DType dtype, void* out) {
  const int64_t lanes = a.geometry.lanes();
  const double* sums = which ? a.products : a.sums;
  const Buffer<double> totals(channels);
  std::memset(totals.data(), 0, channels * sizeof(double));
  for (int64_t start = 0; start < lanes; start += channels) {
    for_each_position<double>(channels, [&](auto at) {
      at.store(totals.data(), at.load(totals.data()) + at.load(sums + start));
    });
  }
  with_floating(dtype, [&](auto t) { narrow(static_cast<decltype(t)*>(out), totals.data(), channels); });
}

void widen_repeated(const void* source, DType dtype, double offset, int64_t n, int64_t each, int64_t times,
                    double* out) {
  with_floating(dtype, [&](auto t) {
    using C = Opmath<decltype(t)>;
    const Buffer<C> scratch(n);
    const C* const values = widen(static_cast<const decltype(t)*>(source), scratch.data(), n);
    if (each == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<double>(values[i]) + offset;
      return;
    }
    for (int64_t i = 0; i < n; ++i) {
      const double value = static_cast<double>(values[i]) + offset;
      for (int64_t k = 0; k < each; ++k) out[i * each + k] = value;
    }
  });
  for (int64_t k = 1; k < times; ++k) std::memcpy(out + k * n * each, out, n * each * sizeof(double));
}

void bound(const double* values, int64_t n, int64_t each, double* smallest, double* largest) {
  const Doubles none = Doubles{} + 0x1p128;
  Doubles low = none, high = {};
  for (int64_t i = 0; i < n; i += std::max<int64_t>(each, Lanes<double>::width)) {
    const Doubles size = size_of<double>(load(values + i));
    const LaneMask<double> normal = (size >= smallest_normal) & (size < 0x1p128);
    const Doubles kept = keep_lanes<double>(size, normal), or_none = choose(normal, size, none);
    low = choose(or_none < low, or_none, low);
    high = choose(high < kept, kept, high);
  }
  *smallest = low[0];
  *largest = high[0];
  for (int i = 1; i < Lanes<double>::width; ++i) {
    *smallest = std::min<double>(*smallest, low[i]);
    *largest = std::max<double>(*largest, high[i]);
  }
}

void move(const Values& running, const void* statistics, int64_t stride, DType dtype, int64_t n, double share,
          double factor) {
  with_floating(running.dtype, [&](auto t) {
    using C = Opmath<decltype(t)>;
    constexpr int64_t several = 64;
    auto* const at = static_cast<decltype(t)*>(running.data);
    const auto towards = [&](const auto* statistic) {
      for (int64_t begin = 0; begin < n; begin += several) {
        const int64_t count = std::min(several, n - begin);
        C scratch[several];
        double moved[several];
        const C* const values = widen(at + begin, scratch, count);
        for (int64_t i = 0; i < count; ++i) moved[i] = (1 - share) * static_cast<double>(values[i]);
        for (int64_t i = 0; i < count; ++i) moved[i] += share * (factor * statistic[(begin + i) * stride]);
        narrow(at + begin, moved, count);
      }
    };
    dtype == DType::float64 ? towards(static_cast<const double*>(statistics))
                            : towards(static_cast<const float*>(statistics));
  });
}

}  // namespace

const ChannelsKernels channels_kernels = {remember, repair, repair_gradient, finish,
                                          widen_repeated, bound, move, turn};

}  // namespace evenkeel::EVENKEEL_ISA
