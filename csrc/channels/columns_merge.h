// Channels as columns: the items' sums merged, and the statistics, means and factors that follow from them.
#pragma once

#include "channels/columns.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// Calls body(sums of the item, lane in the item) for the items in which a lane lies.
template <class Body>
void for_each_item(const ChannelsCall& a, int64_t items, int64_t partial, int64_t outer, int64_t lane,
                   const Body& body) {
  const int64_t strips = a.geometry.strips, strip = strips == 1 ? 0 : lane / a.geometry.lanes_of_strip;
  for (int64_t item = outer * items + strip; item < (outer + 1) * items; item += strips) {
    body(a.partial + (item - a.first_item) * partial, lane - strip * a.geometry.lanes_of_strip);
  }
}

// The measured sums of neighbouring statistics, each about its first item's shift.
struct StripSums {
  double shift[longest_strip], sum[longest_strip], square[longest_strip], count = 0;

  // of statistics that are lanes of one strip
  void add_lanes(const ChannelsCall& a, int64_t outer, int64_t first, int64_t lanes) {
    const ChannelsGeometry& g = a.geometry;
    const int64_t stride = strip_stride(g);
    for_each_repeat(g, first, [&](int64_t lane) {
      for_each_item(a, g.measure_items, measure_partial(g), outer, lane, [&](const double* partial, int64_t i) {
        add(lanes, partial[3 * stride], partial + i, partial + stride + i, partial + 2 * stride + i);
      });
    });
  }
  // of any from one on
  void merge_lanes(const ChannelsCall& a, int64_t first, int64_t statistics) {
    const ChannelsGeometry& g = a.geometry;
    const int64_t outer = first / g.statistics_per_block, stride = strip_stride(g);
    for (int64_t i = 0; i < statistics; ++i) {
      MergedSums merged;
      for_each_run(g, first + i, [&](int64_t lane, int64_t lanes) {
        for_each_item(a, g.measure_items, measure_partial(g), outer, lane, [&](const double* partial, int64_t at) {
          const double elements = partial[3 * stride] * static_cast<double>(lanes);
          merged.add(elements, partial[at], partial[stride + at], partial[2 * stride + at]);
        });
      });
      shift[i] = merged.shift;
      sum[i] = merged.sum;
      square[i] = merged.square;
      count = merged.count;
    }
  }

 private:
  // as MergedSums adds
  void add(int64_t lanes, double item_count, const double* shifts, const double* sums, const double* squares) {
    if (item_count == 0) return;
    if (count == 0) {
      std::memcpy(shift, shifts, lanes * sizeof(double));
      std::memcpy(sum, sums, lanes * sizeof(double));
      std::memcpy(square, squares, lanes * sizeof(double));
      count = item_count;
      return;
    }
    count += item_count;
    for_each_position<double>(lanes, [&](auto at) {
      const Doubles step = at.load(shifts) - at.load(shift), item_sum = at.load(sums);
      at.store(sum, at.load(sum) + (item_sum + item_count * step));
      at.store(square, at.load(square) + (at.load(squares) + step * (2.0 * item_sum + item_count * step)));
    });
  }
};

template <class T, bool>
void merge_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  for_each_strip(a.geometry, begin, end, [&](int64_t first, int64_t outer, int64_t statistic, int64_t statistics) {
    const bool are_lanes = lanes_are_statistics(a.geometry);
    StripSums merged;
    are_lanes ? merged.add_lanes(a, outer, statistic, statistics) : merged.merge_lanes(a, first, statistics);
    StatisticsStrip<C> s;
    double variances[longest_strip];
    s.conclude(a, merged.count, statistics, merged.shift, merged.sum, merged.square, variances);
    s.save(a, first, statistics);
    for (int64_t i = 0; i < statistics; ++i) static_cast<C*>(a.variance)[first + i] = static_cast<C>(variances[i]);
    fill_affine(a, s, first, statistics);
  });
}

// The backward's sums of neighbouring lanes of a strip, over the items.
inline void sum_items(const ChannelsCall& a, int64_t outer, int64_t lane, int64_t lanes) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t stride = strip_stride(g), first = outer * g.lanes_of_row + lane;
  double *gradients = a.sums + first, *products = a.products + first;
  bool more = false;
  for_each_item(a, g.sum_items, sum_partial(g), outer, lane, [&](const double* partial, int64_t i) {
    for_each_position<double>(lanes, [&](auto at) {
      const Doubles gradient = at.load(partial + i), product = at.load(partial + stride + i);
      at.store(gradients, more ? at.load(gradients) + gradient : gradient);
      at.store(products, more ? at.load(products) + product : product);
    });
    more = true;
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
  for_each_run(g, statistic, [&](int64_t lane, int64_t lanes) {
    sum_items(a, outer, lane, lanes);
    const double* gradients = a.sums + outer * g.lanes_of_row + lane;
    double* products = a.products + outer * g.lanes_of_row + lane;
    const double* weights = a.weights_from(lane);
    for_each_position<double>(lanes, [&](auto at) {
      const Doubles sum = at.load(gradients), product = about_exact_mean(at.load(products), Doubles{} + rest, sum) * reciprocal;
      at.store(products, product);
      const Doubles weight = parameter_at(at, weights, 1);
      total += weight * sum;
      total_product += weight * product;
    });
  });
  if (a.remembered) return;
  const double n = count_of(a, statistic), mean_g = sum_of_lanes(total) / n, mean_gx = sum_of_lanes(total_product) / n;
  a.means[statistic * 2] = mean_g;
  a.means[statistic * 2 + 1] = mean_gx;
  if (is_exact<extras>(a, outer)) return;
  const auto all = [](double value) { return [value](auto) { return Doubles{} + value; }; };
  for_each_run(g, statistic, [&](int64_t lane, int64_t lanes) {
    lane_factors<C>(a, outer, lane).set_gradient(s, lanes, a.weights_from(lane), all(mean_g), all(mean_gx));
    spread_gradient<C>(a, outer, lane, lanes);
  });
}

template <class T, bool extras>
void merge_sums_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  if (!lanes_are_statistics(a.geometry)) {
    for (int64_t i = begin; i < end; ++i) merge_sums_one<T, extras>(a, i);
    return;
  }
  const ChannelsGeometry& g = a.geometry;
  for_each_strip(g, begin, end, [&](int64_t first, int64_t outer, int64_t first_lane, int64_t lanes) {
    const double n = count_of(a, first), rest_counts = is_short<extras>(a, outer) ? 1 : 0;
    const double* const weights = a.weights_from(first_lane);
    StatisticsStrip<C> s;
    double mean_g[longest_strip], mean_gx[longest_strip];
    std::fill_n(mean_g, lanes, 0.0);
    std::fill_n(mean_gx, lanes, 0.0);
    s.restore(a, first, lanes);
    for_each_repeat(g, first_lane, [&](int64_t lane) {
      sum_items(a, outer, lane, lanes);
      const int64_t place = outer * g.lanes_of_row + lane;
      double *const sums = a.sums + place, *const products = a.products + place;
      for_each_position<double>(lanes, [&](auto at) {
        const Doubles sum = at.load(sums), rest = rest_counts * load_wide(s.mean_rest + at.i);
        const Doubles product = about_exact_mean(at.load(products), rest, sum) * s.exact_reciprocal(at.i);
        const Doubles weight = parameter_at(at, weights, 1);
        at.store(products, product);
        at.store(mean_g, at.load(mean_g) + weight * sum);
        at.store(mean_gx, at.load(mean_gx) + weight * product);
      });
    });
    if (a.remembered) return;
    for (int64_t i = 0; i < lanes; ++i) {
      a.means[2 * (first + i)] = mean_g[i] /= n;
      a.means[2 * (first + i) + 1] = mean_gx[i] /= n;
    }
    if (is_exact<extras>(a, outer)) return;
    const auto of = [](const double* values) { return [values](auto at) { return at.load(values); }; };
    for_each_repeat(g, first_lane, [&](int64_t lane) {
      lane_factors<C>(a, outer, lane).set_gradient(s, lanes, weights, of(mean_g), of(mean_gx));
      spread_gradient<C>(a, outer, lane, lanes);
    });
  });
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
