// Channels as columns: the items' sums merged, and the statistics, means and factors that follow from them.
#pragma once

#include "channels_columns.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

// Whether every column is a statistic of its own: neighbouring ones are merged side by side.
inline bool columns_are_statistics(const ChannelsGeometry& g) { return g.fold == 1 && g.repeat == 1; }

// Calls body(first statistic, outer index, first column, columns) for the statistics [begin, end), a strip at a time.
template <class Body>
void for_each_strip(const ChannelsGeometry& g, int64_t begin, int64_t end, const Body& body) {
  while (begin < end) {
    const int64_t column = begin % g.width, left = std::min(g.width - column, strip - column % strip);
    const int64_t columns = std::min(left, end - begin);
    body(begin, begin / g.width, column, columns);
    begin += columns;
  }
}

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
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = statistic / g.statistics_per_block, stride = strip_stride(g);
  MergedSums merged;
  for_each_run(g, statistic, [&](int64_t column, int64_t columns) {
    for_each_item(a, g.measure_items, measure_partial(g), outer, column, [&](const double* partial, int64_t i) {
      merged.add(partial[3 * stride], columns, partial + i, partial + stride + i, partial + 2 * stride + i);
    });
  });
  save_merged<C>(a, statistic, merged);
  fill_affine(a, statistic, restore_statistics<C>(a, statistic));
}

template <class T, bool>
void merge_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = typename Compute<T>::type;
  if (!columns_are_statistics(a.geometry)) {
    for (int64_t i = begin; i < end; ++i) merge_one<T>(a, i);
    return;
  }
  for_each_strip(a.geometry, begin, end, [&](int64_t first, int64_t outer, int64_t column, int64_t columns) {
    const StripSums merged(a, outer, column, columns);
    for (int64_t i = 0; i < columns; ++i) {
      save_merged<C>(a, first + i, merged.of(i));
      fill_affine(a, first + i, restore_statistics<C>(a, first + i));
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

// Saves the means of g and g * x_hat over a statistic, given their sums, and fills the factors of its columns.
template <class C>
void save_means(const ChannelsCall& a, int64_t statistic, const ChannelStatistics<C>& s, double sum, double product) {
  const double n = count_of(a, statistic), mean_g = sum / n, mean_gx = product / n;
  a.means[statistic * 2] = mean_g;
  a.means[statistic * 2 + 1] = mean_gx;
  ColumnFactors<C> factors(a, statistic / a.geometry.statistics_per_block, 0);
  for_each_run(a.geometry, statistic, [&](int64_t first, int64_t columns) {
    if (a.geometry.per_channel > 1) {
      return factors.set(first, columns, Projection<C>(s, a.weight_of(first), mean_g, mean_gx));
    }
    for (int64_t i = first; i < first + columns; ++i) {
      factors.set(i, 1, Projection<C>(s, a.weight_of(i), mean_g, mean_gx));
    }
  });
}

// What the mean lost in rounding, where the sums know nothing of it.
template <bool extras, class C>
double unsummed_rest(const ChannelsCall& a, int64_t outer, const ChannelStatistics<C>& s) {
  return is_short<extras>(a, outer) ? static_cast<double>(s.mean_rest) : 0;
}

template <class T, bool extras>
void merge_sums_one(const ChannelsCall& a, int64_t statistic) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = statistic / g.statistics_per_block;
  const ChannelStatistics<C> s = restore_statistics<C>(a, statistic);
  const double reciprocal = s.exact_reciprocal(), rest = unsummed_rest<extras>(a, outer, s);
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
  save_means(a, statistic, s, sum_of_lanes(total), sum_of_lanes(total_product));
}

template <class T, bool extras>
void merge_sums_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = typename Compute<T>::type;
  if (!columns_are_statistics(a.geometry)) {
    for (int64_t i = begin; i < end; ++i) merge_sums_one<T, extras>(a, i);
    return;
  }
  for_each_strip(a.geometry, begin, end, [&](int64_t first, int64_t outer, int64_t column, int64_t columns) {
    sum_items(a, outer, column, columns);
    for (int64_t i = first; i < first + columns; ++i) {  // a statistic's lane is its own number
      const ChannelStatistics<C> s = restore_statistics<C>(a, i);
      const double sum = a.sums[i], rest = unsummed_rest<extras>(a, outer, s), weight = a.weight_of(i % a.geometry.width);
      double& product = a.products()[i];
      product = (product - rest * sum) * s.exact_reciprocal();
      save_means(a, i, s, weight * sum, weight * product);
    }
  });
}

}  // namespace
}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
