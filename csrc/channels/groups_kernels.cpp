// The channel pattern over groups of few positions. Contiguous, each group of a sample is a row of its own, whose
// columns have a weight each; channels-last it is a run of channels at each position. Those of few elements lie side by
// side. Compiled once per instruction set.
//
// A row may be so short that its gradient is by chance far smaller than its terms: then all is computed in double. One
// phase does everything for an item. The gradients of the affine are summed over the samples of a block.
#include <algorithm>
#include <initializer_list>

#include "channels/groups_gradient.h"
#include "channels/groups_runs.h"
#include "channels/groups_small.h"
#include "channels/phases.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// The statistics of neighbouring rows, and their results.
template <class T, bool extras>
void measure_rows(const ChannelsCall& a, int64_t first, int64_t rows) {
  using C = Opmath<T>;
  const double count = static_cast<double>(a.geometry.count);
  constexpr int64_t most = most_groups_together;
  double shifts[most] = {}, sums[most] = {}, squares[most] = {}, variances[most];
  for (int64_t i = 0; i < rows; ++i) {
    const T* x = static_cast<const T*>(a.x) + (first + i) * a.geometry.count;
    const auto sum_about = [&](double shift) {
      Wide<C> total{}, square{};
      for_each_position<C>(a.geometry.count, [&](auto at) {
        const Wide<C> v = keep_wide(at, load_as_doubles<C>(at, x) - shift);
        total += v;
        square += v * v;
      });
      shifts[i] = shift;
      sums[i] = sum_of_lanes(total.sum());
      squares[i] = sum_of_lanes(square.sum());
    };
    // any element is near enough to the mean for floats: its square is at most `count` variances away
    sum_about(to_double(x[0]));
    if constexpr (sizeof(C) == sizeof(double)) sum_about(shifts[i] + sums[i] / count);
  }
  StatisticsStrip<C> statistics;
  statistics.conclude(a, count, rows, shifts, sums, squares, variances);
  statistics.save(a, first, rows);
  for (int64_t i = 0; i < rows; ++i) static_cast<C*>(a.variance)[first + i] = static_cast<C>(variances[i]);
  with_activation_of<extras>(a, [&](auto activation) {
    for (int64_t i = 0; i < rows; ++i) {
      const Group<T> group(a, first + i);
      const ChannelStatistics<C> s = statistics.at(i);
      const double reciprocal = s.exact_reciprocal();
      const T* x = static_cast<const T*>(a.x) + group.offset;
      T* y = static_cast<T*>(a.out) + group.offset;
      for_each_position<C>(group.count, [&](auto at) {
        at.store(y, activate<decltype(activation)::value, C>(group.input_by_rows(at, x, s, reciprocal)));
      });
    }
  });
}

template <class T, bool extras>
void measure_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  if (a.geometry.small) return measure_all_small<T>(a, begin, end);
  if (a.geometry.innermost) return measure_all_runs<T, extras>(a, begin, end);
  const int64_t together = groups_together(a.geometry);
  for (int64_t i = begin; i < end; i += together) measure_rows<T, extras>(a, i, std::min(together, end - i));
}

// A row's gradient in double.
template <class T, Activation activation, bool single>
class RowGradient {
 public:
  using C = Opmath<T>;
  static constexpr int64_t width = Lanes<C>::width, most_kept = 64;
  using Kept = Wide<C>[most_kept / width];  // gradients led through the activation, of a row so short

  RowGradient(const ChannelsCall& a, int64_t statistic, Kept& kept)
      : statistics_(restore_statistics<C>(a, statistic)),
        is_own_(EVENKEEL_ISA::is_own(a, statistic, statistics_)),
        group_(a, statistic),
        x_(static_cast<const T*>(a.x) + group_.offset),
        dy_(static_cast<const T*>(a.dy) + group_.offset),
        reciprocal_(statistics_.exact_reciprocal()),
        only_weight_(single ? a.weight_of(group_.column) : 1),
        kept_(kept) {}
  bool is_own() const { return is_own_; }
  // The sums of dy and of dy * x_hat, times the weight; without it they are added to those of the columns, which lie a
  // stride apart, or where the row is a single channel to that channel's.
  void sum(double* gradients, double* products, double (&sums)[2]) const {
    Doubles total = {}, product = {};
    for_each_position<C>(group_.count, [&](auto at) {
      const Wide<C> x_hat = keep_wide(at, normalized(at));
      Wide<C> upstream = upstream_at(at, x_hat);
      if (is_active) upstream = keep_wide(at, upstream);
      const Wide<C> weight = single ? Wide<C>() : group_.own_weight(at);
      for (int i = 0; i < parts_of(at); ++i) {
        const Whole<double> lanes{at.i + i * Lanes<double>::width};
        const Doubles along = upstream.part[i] * x_hat.part[i];
        if constexpr (single) {
          total += upstream.part[i];
          product += along;
        } else {
          lanes.store(gradients, lanes.load(gradients) + upstream.part[i]);
          lanes.store(products, lanes.load(products) + along);
          total += upstream.part[i] * weight.part[i];
          product += along * weight.part[i];
        }
      }
    });
    sums[0] = sum_of_lanes(total);
    sums[1] = sum_of_lanes(product);
    if constexpr (single) {
      *gradients += sums[0];
      *products += sums[1];
      for (double& each : sums) each *= only_weight_;
    }
  }
  void write(T* dx, const double (&sums)[2]) const {
    const double n = static_cast<double>(group_.count);
    const double mean_g = sums[0] / n, along = static_cast<double>(statistics_.bend) * (sums[1] / n);
    for_each_position<C>(group_.count, [&](auto at) {
      const Wide<C> x_hat = normalized(at);
      Wide<C> v = keeps() ? kept_[at.i / width] : upstream_at(at, x_hat);
      for (int i = 0; i < parts_of(at); ++i) {
        const Doubles weight = single ? Doubles{} + only_weight_ : group_.weight(at.i + i * Lanes<double>::width);
        v.part[i] = ((v.part[i] * weight - mean_g) - x_hat.part[i] * along) * reciprocal_;
      }
      at.store(dx + group_.offset, v.rounded());
    });
  }
  const Group<T>& group() const { return group_; }

 private:
  static constexpr bool is_active = activation != Activation::none;
  bool keeps() const { return is_active && group_.count <= most_kept; }
  template <class At>
  Wide<C> normalized(const At& at) const {
    return wide_centred(load_as_doubles<C>(at, x_), statistics_) * reciprocal_;
  }
  // ReLU lets through what it let through to y
  template <class At>
  Wide<C> upstream_at(const At& at, const Wide<C>& x_hat) const {
    if constexpr (!is_active) return load_as_doubles<C>(at, dy_);
    constexpr bool is_relu = activation == Activation::relu;
    Wide<C> upstream;
    if (!is_relu && keeps()) {
      upstream = through_activation<activation, C>(load_as_doubles<C>(at, dy_), group_.affine(at, x_hat));
    } else {
      const Vector<C> input = is_relu ? group_.input_of_y(at, x_, statistics_) : group_.affine(at, x_hat).rounded();
      upstream = Wide<C>(through_activation<activation, C>(at.load(dy_), input));
    }
    if (keeps()) kept_[at.i / width] = upstream;
    return upstream;
  }
  const ChannelStatistics<C> statistics_;
  const bool is_own_;
  const Group<T> group_;
  const T *x_, *dy_;
  const double reciprocal_, only_weight_;
  Kept& kept_;
};

// dx of neighbouring rows, and what they add to the gradients of the affine.
template <class T, Activation activation, bool single>
__attribute__((flatten)) void sum_rows(const ChannelsCall& a, int64_t first, int64_t rows) {
  using Row = RowGradient<T, activation, single>;
  const ChannelsGeometry& g = a.geometry;
  typename Row::Kept kept[most_groups_together];
  double sums[most_groups_together][2];
  for (int64_t i = 0; i < rows; ++i) {
    const Row row(a, first + i, kept[i]);
    if (!row.is_own()) continue;
    if constexpr (single) {
      const int64_t lane = (first + i) / g.statistics_per_block * g.channels + (first + i) % g.groups;
      row.sum(a.sums + lane, a.products + lane, sums[i]);
    } else {
      double* const own = static_cast<double*>(a.factors) + row.group().column;
      row.sum(own, own + column_stride(g), sums[i]);
    }
  }
  for (int64_t i = 0; a.out && i < rows; ++i) {
    const Row row(a, first + i, kept[i]);
    if (row.is_own()) row.write(static_cast<T*>(a.out), sums[i]);
  }
}
template <class T, bool extras, bool single>
void sum_all_rows(const ChannelsCall& a, int64_t begin, int64_t end) {
  const int64_t together = groups_together(a.geometry);
  with_activation_of<extras>(a, [&](auto activation) {
    for (int64_t i = begin; i < end; i += together) {
      sum_rows<T, decltype(activation)::value, single>(a, i, std::min(together, end - i));
    }
  });
}

// Whether floats do for the gradient of a row, and for its sums.
inline bool is_short(const ChannelsCall& a) { return sums_are_short(a) && !has_few_elements(a, 0); }

// The sums of a block's channels, some from one on, in double: add_rows() adds rows to those of their columns.
template <class AddRows>
void sum_columns(const ChannelsCall& a, int64_t lane, int64_t first, int64_t channels, const AddRows& add_rows) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t each = g.per_channel, stride = column_stride(g);
  double* columns = static_cast<double*>(a.factors) + first * each;
  for (int k = 0; k < 2; ++k) std::memset(columns + k * stride, 0, padded(channels * each) * sizeof(double));
  add_rows();
  for (double* out : {a.sums + lane + first, a.products + lane + first}) {
    for (int64_t channel = 0; channel < channels; ++channel) {
      out[channel] = 0;
      for (int64_t i = 0; i < each; ++i) out[channel] += columns[channel * each + i];
    }
    columns += stride;
  }
}

// A group of all samples of a block, whose columns floats do for; in double what they do not hold.
template <class T, bool extras>
void sum_group(const ChannelsCall& a, int64_t lane, int64_t begin, int64_t end, int64_t group) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t share = g.channels / g.groups, channel = group * share;
  GroupGradient<T, extras> gradient(a, group, a.sums + lane + channel, a.products + lane + channel);
  for (int64_t i = begin + group; i < end; i += g.groups) {
    const int64_t next = i + g.groups < end ? i + g.groups : begin + group + 1;
    if (!gradient.add(i, next)) sum_all_rows<T, extras, false>(a, i, i + 1);  // dx alone: the sums are not used
  }
  if (gradient.finish()) return;
  ChannelsCall sums = a;
  sums.out = nullptr;
  sum_columns(a, lane, channel, share, [&] {
    for (int64_t i = begin + group; i < end; i += g.groups) sum_all_rows<T, extras, false>(sums, i, i + 1);
  });
}

// All of a block.
template <class T, bool extras>
void sum_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t lane = begin / g.statistics_per_block * g.channels, share = g.channels / g.groups;
  if (g.small) {
    sum_all_small<T>(a, begin, end);
  } else if (g.innermost) {
    is_short(a) ? sum_runs<T, extras, false>(a, begin, end) : sum_runs<T, extras, true>(a, begin, end);
  } else if (is_short(a)) {
    if (a.is_first) ColumnsOfRow<Opmath<T>>(a).fill(a);
    for (int64_t group = 0; group < g.groups; ++group) sum_group<T, extras>(a, lane, begin, end, group);
  } else if (share == 1) {
    std::memset(a.sums + lane, 0, g.channels * sizeof(double));
    std::memset(a.products + lane, 0, g.channels * sizeof(double));
    sum_all_rows<T, extras, true>(a, begin, end);
  } else {
    sum_columns(a, lane, 0, g.channels, [&] { sum_all_rows<T, extras, false>(a, begin, end); });
  }
}

}  // namespace

const ChannelsWalk groups_walk = {.measure = EVENKEEL_PHASE(measure_range), .sum = EVENKEEL_PHASE(sum_range)};

}  // namespace evenkeel::EVENKEEL_ISA
