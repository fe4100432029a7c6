// What both walks over channels need beside their sums: given statistics, the rare statistics outside float's range,
// gradients of the affine, converted parameters. Compiled once per instruction set.
#include "channels_common.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

// Calls body(offset, lane, affine) for every element of a statistic; affine indexes weight and bias.
template <class Body>
void for_each_element(const ChannelsGeometry& g, int64_t statistic, const Body& body) {
  if (g.columns) {
    const int64_t outer = statistic / g.statistics_per_block, first = statistic % g.statistics_per_block * g.fold;
    for (int64_t row = outer * g.rows; row < (outer + 1) * g.rows; ++row) {
      for (int64_t i = first; i < first + g.fold; ++i) body(row * g.width + i, outer * g.width + i, i);
    }
    return;
  }
  const int64_t share = g.groups ? g.channels / g.groups : 1, runs = g.groups ? share : g.outer;
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t lane = g.groups ? statistic * share + run : run * g.channels + statistic;
    for (int64_t i = 0; i < g.positions; ++i) body(lane * g.positions + i, lane, lane % g.channels);
  }
}

ChannelStatistics<double> measure_in_double(const ChannelsCall& a, int64_t statistic, const auto* x,
                                            double* variance) {
  const double n = static_cast<double>(a.geometry.count);
  MergedSums merged;
  double total = 0, first = 0;
  bool started = false;
  for_each_element(a.geometry, statistic, [&](int64_t offset, int64_t, int64_t) {
    if (!started) first = to_double(x[offset]);
    started = true;
    total += to_double(x[offset]) - first;
  });
  merged.empty = false;
  merged.shift = first + total / n;
  for_each_element(a.geometry, statistic, [&](int64_t offset, int64_t, int64_t) {
    const double d = to_double(x[offset]) - merged.shift;
    merged.sum += d;
    merged.square += d * d;
  });
  return conclude<double>(merged, a, variance);
}

double normalized_in_double(double x, const ChannelStatistics<double>& s) {
  return ((x - s.mean) - s.mean_rest) * s.reciprocal;
}

template <class T>
void repair_statistic(const ChannelsCall& a, int64_t statistic) {
  const T* x = static_cast<const T*>(a.x);
  const float *weight = static_cast<const float*>(a.weight), *bias = static_cast<const float*>(a.bias);
  double variance;
  const ChannelStatistics<double> s = measure_in_double(a, statistic, x, &variance);
  for_each_element(a.geometry, statistic, [&](int64_t offset, int64_t, int64_t affine) {
    const double v = normalized_in_double(to_double(x[offset]), s) * (weight ? to_double(weight[affine]) : 1) +
                     (bias ? to_double(bias[affine]) : 0);
    narrow(static_cast<T*>(a.out) + offset, &v, 1);
  });
  const float mean = static_cast<float>(s.mean);
  save_statistics<float>(a, statistic, {mean, static_cast<float>((s.mean - mean) + s.mean_rest),
                                        static_cast<float>(s.reciprocal), static_cast<float>(s.bend)});
  static_cast<float*>(a.variance)[statistic] = static_cast<float>(variance);
}

template <class T>
void repair_gradient_of(const ChannelsCall& a, int64_t statistic) {
  const T *x = static_cast<const T*>(a.x), *dy = static_cast<const T*>(a.dy);
  const float* weight = static_cast<const float*>(a.weight);
  const double n = static_cast<double>(a.geometry.count);
  double variance, mean_g = 0, mean_gx = 0;
  const ChannelStatistics<double> s = measure_in_double(a, statistic, x, &variance);
  for_each_element(a.geometry, statistic, [&](int64_t, int64_t lane, int64_t) { a.sums[lane * 2] = a.sums[lane * 2 + 1] = 0; });
  for_each_element(a.geometry, statistic, [&](int64_t offset, int64_t lane, int64_t affine) {
    const double upstream = to_double(dy[offset]), x_hat = normalized_in_double(to_double(x[offset]), s);
    const double g = upstream * (weight ? to_double(weight[affine]) : 1);
    a.sums[lane * 2] += upstream;
    a.sums[lane * 2 + 1] += upstream * x_hat;
    mean_g += g;
    mean_gx += g * x_hat;
  });
  if (!a.out) return;
  mean_g /= n;
  mean_gx /= n;
  for_each_element(a.geometry, statistic, [&](int64_t offset, int64_t, int64_t affine) {
    const double g = to_double(dy[offset]) * (weight ? to_double(weight[affine]) : 1);
    const double along = normalized_in_double(to_double(x[offset]), s) * s.bend * mean_gx;
    const double v = ((g - mean_g) - along) * s.reciprocal;
    narrow(static_cast<T*>(a.out) + offset, &v, 1);
  });
}

// Calls body(value of x's type, statistic) for those that float arithmetic cannot hold.
template <class Body>
void for_each_out_of_range(const ChannelsCall& a, int64_t begin, int64_t end, const Body& body) {
  if (a.remembered || a.dtype == DType::float64) return;
  for (int64_t statistic = begin; statistic < end; ++statistic) {
    if (in_range(restore_statistics<float>(a, statistic))) continue;
    by_dtype(a.dtype, [&](auto t) {
      if constexpr (sizeof(t) < sizeof(double)) body(t, statistic);
    });
  }
}

void repair(const ChannelsCall& a, int64_t begin, int64_t end) {
  for_each_out_of_range(a, begin, end, [&](auto t, int64_t statistic) { repair_statistic<decltype(t)>(a, statistic); });
}

void repair_gradient(const ChannelsCall& a, int64_t begin, int64_t end) {
  for_each_out_of_range(a, begin, end, [&](auto t, int64_t statistic) { repair_gradient_of<decltype(t)>(a, statistic); });
}

// The mean and the variance lie in the statistics' first column and in the variances.
template <class C>
void remember_statistic(const ChannelsCall& a, int64_t statistic) {
  ChannelStatistics<C> s{};
  s.mean = static_cast<C*>(a.statistics)[statistic * a.statistics_width()];
  set_scale(s, static_cast<double>(static_cast<C*>(a.variance)[statistic]), a.eps, a.eps_mode);
  save_statistics(a, statistic, s);
}

void remember(const ChannelsCall& a, int64_t begin, int64_t end) {
  for (int64_t statistic = begin; statistic < end; ++statistic) {
    if (a.dtype == DType::float64) {
      remember_statistic<double>(a, statistic);
    } else {
      remember_statistic<float>(a, statistic);
    }
  }
}

void finish(const ChannelsCall& a, int which, int64_t channels, DType dtype, void* out) {
  const int64_t repeats = a.geometry.columns ? a.geometry.per_channel : 1;
  const int64_t per_outer = channels * repeats;
  for (int64_t channel = 0; channel < channels; ++channel) {
    double total = 0;
    for (int64_t outer = 0; outer < a.geometry.outer; ++outer) {
      for (int64_t i = 0; i < repeats; ++i) total += a.sums[(outer * per_outer + channel * repeats + i) * 2 + which];
    }
    by_dtype(dtype, [&](auto t) { narrow(static_cast<decltype(t)*>(out) + channel, &total, 1); });
  }
}

void widen_repeated(const void* source, DType dtype, double offset, int64_t n, int64_t repeats, bool to_double_,
                    void* out) {
  by_dtype(dtype, [&](auto t) {
    for (int64_t i = 0; i < n * repeats; ++i) {
      const double value = to_double(static_cast<const decltype(t)*>(source)[i / repeats]) + offset;
      if (to_double_) {
        static_cast<double*>(out)[i] = value;
      } else {
        static_cast<float*>(out)[i] = static_cast<float>(value);
      }
    }
  });
}

}  // namespace
}  // namespace EVENKEEL_ISA

extern const ChannelsKernels EVENKEEL_JOIN(channels_kernels_, EVENKEEL_ISA);
const ChannelsKernels EVENKEEL_JOIN(channels_kernels_, EVENKEEL_ISA) = {
    EVENKEEL_ISA::remember, EVENKEEL_ISA::repair, EVENKEEL_ISA::repair_gradient, EVENKEEL_ISA::finish,
    EVENKEEL_ISA::widen_repeated};

}  // namespace evenkeel
