// The channel pattern over groups of few positions, contiguous: each group of a sample is a row of its own, whose
// columns have a weight each. Compiled once per instruction set.
//
// A row may be so short that its gradient is by chance far smaller than its terms: all is computed in double. One phase
// does everything for an item. The gradients of the affine are summed over the samples of a block.
#include "channels_common.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

// 0 in the lanes past the end.
template <class C>
inline Wide<C> keep_wide(const Whole<C>&, Wide<C> v) {
  return v;
}
template <class C>
inline Wide<C> keep_wide(const Rest<C>& at, Wide<C> v) {
  constexpr int width = Lanes<double>::width;
  for (int i = 0; i < Wide<C>::parts; ++i) {
    for (int lane = 0; lane < width; ++lane) {
      if (i * width + lane >= at.count) v.part[i][lane] = 0;
    }
  }
  return v;
}

// What is stored for each column of a group, 0 in the lanes past its end: there lies the next group's, which may be
// infinite, and 0 times that is NaN.
template <class C>
inline Wide<C> load_wide(const Whole<C>& at, const double* p) {
  Wide<C> v;
  for (int i = 0; i < Wide<C>::parts; ++i) v.part[i] = load(p + at.i + i * Lanes<double>::width);
  return v;
}
template <class C>
inline Wide<C> load_wide(const Rest<C>& at, const double* p) {
  constexpr int width = Lanes<double>::width;
  Wide<C> v;
  for (int i = 0; i < Wide<C>::parts; ++i) {
    const int count = std::clamp(at.count - i * width, 0, width);
    v.part[i] = Rest<double>{at.i + i * width, count}.load(p);
  }
  return v;
}

// A group of a sample: its columns of the tensor's rows, and what is stored for each of them.
template <class T>
struct Group {
  using C = typename Compute<T>::type;
  int64_t column, offset, count;
  const double *weights, *biases;
  Group(const ChannelsCall& a, int64_t statistic)
      : column(statistic % a.geometry.groups * a.geometry.count),
        offset(statistic * a.geometry.count),
        count(a.geometry.count),
        weights(a.weight ? a.weight + column : nullptr),
        biases(a.bias ? a.bias + column : nullptr) {}
  template <class At>
  Wide<C> weight(const At& at) const {
    return weights ? load_wide(at, weights) : Wide<C>(typename Lanes<C>::vector{} + C(1));
  }
  // the input of the activation, given x_hat
  template <class At>
  Wide<C> affine(const At& at, Wide<C> v) const {
    const Wide<C> scale = weight(at), shift = biases ? load_wide(at, biases) : Wide<C>(typename Lanes<C>::vector{});
    for (int i = 0; i < Wide<C>::parts; ++i) v.part[i] = v.part[i] * scale.part[i] + shift.part[i];
    return v;
  }
};

template <class C>
inline Wide<C> scaled(Wide<C> v, double factor) {
  for (auto& part : v.part) part *= factor;
  return v;
}

template <class T, bool>
void prepare_one(const ChannelsCall&, int64_t) {}

// The statistics of a row, and its result.
template <class T, bool extras>
void measure_one(const ChannelsCall& a, int64_t statistic) {
  using C = typename Compute<T>::type;
  const Group<T> group(a, statistic);
  const T* x = static_cast<const T*>(a.x) + group.offset;
  T* y = static_cast<T*>(a.out) + group.offset;
  const auto differences = [&](auto at, double from) {
    Wide<C> v(at.load(x));
    for (auto& part : v.part) part -= from;
    return keep_wide(at, v);
  };
  MergedSums merged;
  merged.count = static_cast<double>(group.count);
  const auto sum_about = [&](double shift) {
    Doubles total = {}, square = {};
    for_each_position<C>(group.count, [&](auto at) {
      for (const Doubles& part : differences(at, shift).part) {
        total += part;
        square += part * part;
      }
    });
    merged.shift = shift;
    merged.sum = sum_of_lanes(total);
    merged.square = sum_of_lanes(square);
  };
  // any element is near enough to the mean for floats: its square is at most `count` variances away
  sum_about(to_double(x[0]));
  if constexpr (sizeof(C) == sizeof(double)) sum_about(merged.shift + merged.sum / merged.count);
  save_merged<C>(a, statistic, merged);
  const ChannelStatistics<C> s = restore_statistics<C>(a, statistic);
  with_activation_of<extras>(a, [&](auto activation) {
    for_each_position<C>(group.count, [&](auto at) {
      const Wide<C> x_hat = scaled<C>(wide_centred<C>(at.load(x), s), s.exact_reciprocal());
      at.store(y, activate<decltype(activation)::value, C>(group.affine(at, x_hat).rounded()));
    });
  });
}

template <class T, bool>
void merge_one(const ChannelsCall&, int64_t) {}
template <class T, bool>
void write_one(const ChannelsCall&, int64_t) {}

// The sums of a block's columns: of dy, and a stride further of dy * x_hat. A row's last vector may reach past them.
inline int64_t column_stride(const ChannelsGeometry& g) { return padded(g.width) + Lanes<float>::width; }

// dx of a row, and what the row adds to the gradients of the affine.
template <class T, bool extras>
void sum_one(const ChannelsCall& a, int64_t statistic) {
  using C = typename Compute<T>::type;
  constexpr int parts = Wide<C>::parts;
  constexpr int64_t width = Lanes<C>::width, most_kept = 64;
  const ChannelsGeometry& g = a.geometry;
  const int64_t stride = column_stride(g);
  double* const sums = static_cast<double*>(a.factors);
  if (statistic % g.statistics_per_block == 0) std::memset(sums, 0, 2 * stride * sizeof(double));
  const ChannelStatistics<C> s = restore_statistics<C>(a, statistic);
  if (!in_range(s) && !is_nan(s)) return;  // its repair adds them
  const Group<T> group(a, statistic);
  const T *x = static_cast<const T*>(a.x) + group.offset, *dy = static_cast<const T*>(a.dy) + group.offset;
  const double reciprocal = s.exact_reciprocal(), n = static_cast<double>(group.count);
  double* const own = sums + group.column;
  with_activation_of<extras>(a, [&](auto activation) {
    constexpr Activation known = decltype(activation)::value;
    Wide<C> kept[most_kept / width];  // gradients led through the activation, of rows so short
    const bool keeps = known != Activation::none && group.count <= most_kept;
    const auto upstream_at = [&](auto at, const Wide<C>& x_hat) {
      Wide<C> upstream(at.load(dy));
      if constexpr (known != Activation::none) {
        const Wide<C> input = group.affine(at, x_hat);
        if (!keeps) return Wide<C>(through_activation<known, C>(at.load(dy), input.rounded()));
        for (int i = 0; i < parts; ++i) {
          upstream.part[i] = through_activation<known, double>(upstream.part[i], input.part[i]);
        }
        kept[at.i / width] = upstream;
      }
      return upstream;
    };
    Doubles total = {}, product = {};
    for_each_position<C>(group.count, [&](auto at) {
      const Wide<C> x_hat = keep_wide(at, scaled<C>(wide_centred<C>(at.load(x), s), reciprocal));
      const Wide<C> upstream = upstream_at(at, x_hat), weight = group.weight(at);
      for (int i = 0; i < parts; ++i) {
        const Whole<double> lanes{at.i + i * Lanes<double>::width};
        const Doubles along = upstream.part[i] * x_hat.part[i];
        lanes.store(own, lanes.load(own) + upstream.part[i]);
        lanes.store(own + stride, lanes.load(own + stride) + along);
        total += upstream.part[i] * weight.part[i];
        product += along * weight.part[i];
      }
    });
    if (!a.out) return;
    T* dx = static_cast<T*>(a.out) + group.offset;
    const double mean_g = sum_of_lanes(total) / n, along = static_cast<double>(s.bend) * (sum_of_lanes(product) / n);
    for_each_position<C>(group.count, [&](auto at) {
      const Wide<C> x_hat = scaled<C>(wide_centred<C>(at.load(x), s), reciprocal);
      const Wide<C> weight = group.weight(at);
      Wide<C> v = keeps ? kept[at.i / width] : upstream_at(at, x_hat);
      for (int i = 0; i < parts; ++i) {
        v.part[i] = ((v.part[i] * weight.part[i] - mean_g) - x_hat.part[i] * along) * reciprocal;
      }
      at.store(dx, v.rounded());
    });
  });
}

// The sums of a block's channels, where its first row is.
template <class T, bool>
void merge_sums_one(const ChannelsCall& a, int64_t statistic) {
  const ChannelsGeometry& g = a.geometry;
  if (statistic % g.statistics_per_block) return;
  const double* sums = static_cast<const double*>(a.factors);
  double* const outs[2] = {a.sums, a.products()};
  for (int64_t channel = 0; channel < g.channels; ++channel) {
    for (int which = 0; which < 2; ++which) {
      const double* columns = sums + which * column_stride(g) + channel * g.per_channel;
      double total = 0;
      for (int64_t i = 0; i < g.per_channel; ++i) total += columns[i];
      outs[which][statistic / g.statistics_per_block * g.channels + channel] = total;
    }
  }
}

template <class T, bool>
void write_gradient_one(const ChannelsCall&, int64_t) {}

EVENKEEL_ONE_BY_ONE(prepare)
EVENKEEL_ONE_BY_ONE(measure)
EVENKEEL_ONE_BY_ONE(merge)
EVENKEEL_ONE_BY_ONE(write)
EVENKEEL_ONE_BY_ONE(sum)
EVENKEEL_ONE_BY_ONE(merge_sums)
EVENKEEL_ONE_BY_ONE(write_gradient)

}  // namespace
}  // namespace EVENKEEL_ISA
}  // namespace evenkeel

EVENKEEL_CHANNELS_WALK(channels_groups_kernels_)
