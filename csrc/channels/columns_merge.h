// Channels as columns: the items' sums merged, and the statistics, means and factors that follow from them.
#pragma once

#include "channels/columns.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// Calls body(sums of the item, column in the item) for the items in which a column lies.
template <class Body>
void for_each_item(const ChannelsCall& a, int64_t items, int64_t partial, int64_t outer, int64_t column,
                   const Body& body) {
  const int64_t strips = a.geometry.strips();
  for (int64_t item = outer * items + column / strip; item < (outer + 1) * items; item += strips) {
    body(a.partial + (item - a.first_item) * partial, column % strip);
  }
}

// The measured sums of neighbouring columns of a strip, each about its first item's shift.
class StripSums {
 public:
  StripSums(const ChannelsCall& a, int64_t outer, int64_t column, int64_t columns) : columns_(columns) {
    const ChannelsGeometry& g = a.geometry;
    const int64_t stride = strip_stride(g);
    std::memset(sum_, 0, columns * sizeof(double));
    std::memset(square_, 0, columns * sizeof(double));
    for_each_item(a, g.measure_items, measure_partial(g), outer, column, [&](const double* partial, int64_t i) {
      add(partial[3 * stride], partial + i, partial + stride + i, partial + 2 * stride + i);
    });
  }
  MergedSums of(int64_t i) const { return {shift_[i], sum_[i], square_[i], count_}; }

 private:
  // as MergedSums adds
  void add(double count, const double* shifts, const double* sums, const double* squares) {
    if (count == 0) return;
    if (count_ == 0) std::memcpy(shift_, shifts, columns_ * sizeof(double));
    count_ += count;
    for_each_position<double>(columns_, [&](auto at) {
      const Doubles step = at.load(shifts) - at.load(shift_), sum = at.load(sums);
      at.store(sum_, at.load(sum_) + (sum + count * step));
      at.store(square_, at.load(square_) + (at.load(squares) + step * (2.0 * sum + count * step)));
    });
  }
  double shift_[strip], sum_[strip], square_[strip], count_ = 0;
  const int64_t columns_;
};

template <class T>
void merge_one(const ChannelsCall& a, int64_t statistic) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = statistic / g.statistics_per_block, stride = strip_stride(g);
  MergedSums merged;
  for_each_run(g, statistic, [&](int64_t column, int64_t columns) {
    for_each_item(a, g.measure_items, measure_partial(g), outer, column, [&](const double* partial, int64_t i) {
      merged.add(partial[3 * stride], columns, partial + i, partial + stride + i, partial + 2 * stride + i);
    });
  });
  fill_affine(a, statistic, save_merged<C>(a, statistic, merged));
}

template <class T, bool>
void merge_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  if (!columns_are_statistics(a.geometry)) {
    for (int64_t i = begin; i < end; ++i) merge_one<T>(a, i);
    return;
  }
  for_each_strip(a.geometry, begin, end, [&](int64_t first, int64_t outer, int64_t column, int64_t columns) {
    const StripSums merged(a, outer, column, columns);
    const ColumnFactors<C> factors(a, outer, column);
    for (int64_t i = 0; i < columns; ++i) {
      const auto s = save_merged<C>(a, first + i, merged.of(i));
      factors.set(i, Affine<C>(s, a.weight_of(column + i), a.bias_of(column + i)));
    }
  });
}

// The backward's sums of neighbouring columns of a strip, over the items.
inline void sum_items(const ChannelsCall& a, int64_t outer, int64_t column, int64_t columns) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t stride = strip_stride(g), lane = outer * g.width + column;
  double *gradients = a.sums + lane, *products = a.products() + lane;
  std::memset(gradients, 0, columns * sizeof(double));
  std::memset(products, 0, columns * sizeof(double));
  for_each_item(a, g.sum_items, sum_partial(g), outer, column, [&](const double* partial, int64_t i) {
    for_each_position<double>(columns, [&](auto at) {
      at.store(gradients, at.load(gradients) + at.load(partial + i));
      at.store(products, at.load(products) + at.load(partial + stride + i));
    });
  });
}

template <class T, bool extras>
void merge_sums_one(const ChannelsCall& a, int64_t statistic) {
  using C = Opmath<T>;
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = statistic / g.statistics_per_block;
  const ChannelStatistics<C> s = restore_statistics<C>(a, statistic);
  const double reciprocal = s.exact_reciprocal();
  // what the mean lost in rounding, where the sums know nothing of it
  const double rest = is_short<extras>(a, outer) ? static_cast<double>(s.mean_rest) : 0;
  Doubles total = {}, total_product = {};
  for_each_run(g, statistic, [&](int64_t column, int64_t columns) {
    sum_items(a, outer, column, columns);
    const double* gradients = a.sums + outer * g.width + column;
    double* products = a.products() + outer * g.width + column;
    const double* weights = a.weight ? a.weight + column : nullptr;
    for_each_position<double>(columns, [&](auto at) {
      const Doubles sum = at.load(gradients), product = (at.load(products) - rest * sum) * reciprocal;
      at.store(products, product);
      const Doubles weight = weights ? at.load(weights) : Doubles{} + 1.0;
      total += weight * sum;
      total_product += weight * product;
    });
  });
  const double n = count_of(a, statistic), mean_g = sum_of_lanes(total) / n, mean_gx = sum_of_lanes(total_product) / n;
  a.means[statistic * 2] = mean_g;
  a.means[statistic * 2 + 1] = mean_gx;
  const ColumnFactors<C> factors(a, outer, 0);
  for_each_run(g, statistic, [&](int64_t first, int64_t columns) {
    if (g.per_channel > 1) return factors.set(first, columns, Projection<C>(s, a.weight_of(first), mean_g, mean_gx));
    for (int64_t i = first; i < first + columns; ++i) {
      factors.set(i, Projection<C>(s, a.weight_of(i), mean_g, mean_gx));
    }
  });
}

template <class T, bool extras>
void merge_sums_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  if (!columns_are_statistics(a.geometry)) {
    for (int64_t i = begin; i < end; ++i) merge_sums_one<T, extras>(a, i);
    return;
  }
  for_each_strip(a.geometry, begin, end, [&](int64_t first, int64_t outer, int64_t column, int64_t columns) {
    sum_items(a, outer, column, columns);
    const ColumnFactors<C> factors(a, outer, column);
    const double n = count_of(a, first);
    double *const sums = a.sums + first, *const products = a.products() + first;  // a statistic's lane is its number
    double* const means = a.means + 2 * first;
    const bool is_summed = !is_short<extras>(a, outer);
    for (int64_t i = 0; i < columns; ++i) {
      const ChannelStatistics<C> s = restore_statistics<C>(a, first + i);
      const double rest = is_summed ? 0 : static_cast<double>(s.mean_rest), weight = a.weight_of(column + i);
      products[i] = (products[i] - rest * sums[i]) * s.exact_reciprocal();
      means[2 * i] = weight * sums[i] / n;
      means[2 * i + 1] = weight * products[i] / n;
      factors.set(i, Projection<C>(s, weight, means[2 * i], means[2 * i + 1]));
    }
  });
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
