// The two passes of the row pattern's backward, over rows in the dtype in which they are read, one or several at a time.
//
//   x_hat = (x - mean) / scale,  g = dy * weight
//   dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale + dsum,  dweight += dy * x_hat,  dbias += dy
//
// The means are sums where the scale is a length. With Centring::done, x is x_hat itself.
#pragma once

#include "rows/statistics.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// What is subtracted from a row's gradient: a constant, and x_hat times a slope.
template <class C>
struct Slopes {
  C shift, along;
};

// Rows in the dtype in which they are read: one, or up to as many as a vector has doubles.
template <int most, class C, class T>
struct BackwardGroup {
  const T *x[most], *dy[most];
  T* dx[most];
  const T* dsum[most];
  C mean[most], mean_rest[most], reciprocal[most] = {}, bend[most] = {};
  C shift[most], along[most];  // slopes
  int64_t x_ahead = 0, dy_ahead = 0, dx_ahead = 0, dsum_ahead = 0;  // elements to what is fetched meanwhile

  void set_statistics(int i, const Statistics<C>& s) {
    mean[i] = s.mean;
    mean_rest[i] = s.mean_rest;
    reciprocal[i] = s.reciprocal;
    bend[i] = s.bend;
  }
};

// R rows of a group, copied: every store might change the group's pointers and statistics. Not by way of an argument:
// that is copied as a whole, which has to wait for the pieces that were written last.
template <class C, class T, int R>
struct BackwardRows {
  const T *x[R], *dy[R];
  T* dx[R];
  const T* dsum[R];
  Statistics<C> statistics[R];
  Slopes<C> slopes[R];
  template <int most>
  EVENKEEL_INLINE BackwardRows(const BackwardGroup<most, C, T>& group, int first) {
    for (int r = 0; r < R; ++r) {
      const int i = first + r;
      x[r] = group.x[i];
      dy[r] = group.dy[i];
      dx[r] = group.dx[i];
      dsum[r] = group.dsum[i];
      statistics[r] = {group.mean[i], group.mean_rest[i], group.reciprocal[i], group.bend[i]};
      slopes[r] = {group.shift[i], group.along[i]};
    }
  }
};

// The lanes of the rows' sums of g and of g * x_hat.
template <int most>
struct GradientSums {
  Doubles g[most], product[most];
};

// The first pass, of R rows: it adds to the accumulators (padded, or null) and finds the sums. Parameters and
// accumulators are read and written once for all R. The weight lies in the order in which rows are read.
template <int R, Centring centring, bool weighted, int chains, int most, class C, class T>
__attribute__((flatten)) void sum_rows(int64_t n, const BackwardGroup<most, C, T>& group, int first, const C* weight,
                                       C* dweight, C* dbias, GradientSums<most>& sums) {
  using L = typename Summed<T>::lanes;
  using V = Vector<L>;
  const BackwardRows<C, T, R> rows(group, first);
  Doubles totals[2 * R] = {};
  add_terms<L, chains>(n, totals, [&](auto at, V(&out)[2 * R]) {
    const Whole<L> whole{at.i};  // the accumulators are padded
    // every load stands before the first store: the compiler must keep their order, and a load waits for a store to
    // an address with the same last 12 bits
    V w{}, more_dweight{}, more_dbias{};
    if constexpr (weighted && std::is_same_v<L, pair>) w = whole.load_in_order(weight);
    if constexpr (weighted && !std::is_same_v<L, pair>) w = at.load(weight);
    if (dweight) more_dweight = whole.load_in_order(dweight);
    if (dbias) more_dbias = whole.load_in_order(dbias);
    for (int r = 0; r < R; ++r) {
      const V upstream = at.load(rows.dy[r]);
      V x_hat = centred<centring>(at, rows.x[r], rows.statistics[r]);
      if constexpr (centring != Centring::done) x_hat = x_hat * rows.statistics[r].reciprocal;
      x_hat = at.keep(x_hat);
      V g = upstream;
      if constexpr (weighted) g = upstream * w;
      more_dweight += upstream * x_hat;
      more_dbias += upstream;
      out[2 * r] = g;
      out[2 * r + 1] = g * x_hat;
    }
    if (dweight) whole.store_in_order(dweight, more_dweight);
    if (dbias) whole.store_in_order(dbias, more_dbias);
  });
  for (int r = 0; r < R; ++r) {
    sums.g[first + r] = totals[2 * r];
    sums.product[first + r] = totals[2 * r + 1];
  }
}

// The same where dx is not needed: of the parameters' gradients alone.
template <int R, Centring centring, int most, class C, class T>
__attribute__((flatten)) void sum_parameters(int64_t n, const BackwardGroup<most, C, T>& group, int first, C* dweight,
                                             C* dbias) {
  using L = typename Summed<T>::lanes;
  using V = Vector<L>;
  const BackwardRows<C, T, R> rows(group, first);
  const int64_t x_ahead = group.x_ahead, dy_ahead = group.dy_ahead;
  for_each_position<L>(n, [&](auto at) {
    const Whole<L> whole{at.i};
    V more_dweight{}, more_dbias{};
    if (dweight) more_dweight = whole.load_in_order(dweight);
    if (dbias) more_dbias = whole.load_in_order(dbias);
    for (int r = 0; r < R; ++r) {
      if (x_ahead) {
        fetch(rows.x[r] + at.i + x_ahead);
        fetch(rows.dy[r] + at.i + dy_ahead);
      }
      const V upstream = at.load(rows.dy[r]);
      const V x_hat = at.keep(centred<centring>(at, rows.x[r], rows.statistics[r]) * rows.statistics[r].reciprocal);
      more_dweight += upstream * x_hat;
      more_dbias += upstream;
    }
    if (dweight) whole.store_in_order(dweight, more_dweight);
    if (dbias) whole.store_in_order(dbias, more_dbias);
  });
}

// What a row's sums of g and of g * x_hat give, or those of several.
template <Centring centring, class Numbers>
std::pair<Numbers, Numbers> slopes_of(double count, const Numbers& g, const Numbers& product, const Numbers& reciprocal,
                                      const Numbers& bend) {
  const Numbers slope = product / count * bend * reciprocal;
  return {g / count * reciprocal, centring == Centring::done ? slope : slope * reciprocal};
}

// Sets the slopes of one row, or of a group's rows together.
template <Centring centring, int most, class C, class T>
void take_slopes(const RowsSpec& spec, const GradientSums<most>& sums, BackwardGroup<most, C, T>& rows) {
  const double count = spec.count();
  if constexpr (most == 1) {
    const double g = spec.center() ? sum_of_lanes(sums.g[0]) : 0, product = sum_of_lanes(sums.product[0]);
    const auto [shift, along] = slopes_of<centring, double>(count, g, product, rows.reciprocal[0], rows.bend[0]);
    rows.shift[0] = static_cast<C>(shift);
    rows.along[0] = static_cast<C>(along);
  } else {
    const Doubles g = spec.center() ? sums_of_lanes(sums.g) : Doubles{}, product = sums_of_lanes(sums.product);
    const auto [shift, along] = slopes_of<centring, Doubles>(count, g, product, Eight<C>::widened(rows.reciprocal),
                                                             Eight<C>::widened(rows.bend));
    store_bytes_of(rows.shift, Eight<C>::from(shift));
    store_bytes_of(rows.along, Eight<C>::from(along));
  }
}

// The second pass, of R rows.
template <int R, Centring centring, bool weighted, bool summed, int most, class C, class T>
__attribute__((flatten)) void write_rows(int64_t n, const BackwardGroup<most, C, T>& group, int first, const C* weight,
                                         bool streamed) {
  using L = typename Written<T>::lanes;
  using V = Vector<L>;
  const BackwardRows<C, T, R> rows(group, first);
  const int64_t x_ahead = group.x_ahead, dy_ahead = group.dy_ahead, dx_ahead = group.dx_ahead;
  const int64_t dsum_ahead = group.dsum_ahead;
  for_each_position<L>(n, [&](auto at) {
    if constexpr (R == 1) {
      if (x_ahead) {
        fetch(rows.x[0] + at.i + x_ahead);
        fetch(rows.dy[0] + at.i + dy_ahead);
        if constexpr (summed) fetch(rows.dsum[0] + at.i + dsum_ahead);
        if (!streamed) fetch_to_write(rows.dx[0] + at.i + dx_ahead);
      }
    }
    V w{}, v[R];
    if constexpr (weighted) w = at.load(weight);
    for (int r = 0; r < R; ++r) {
      V g = at.load(rows.dy[r]) * rows.statistics[r].reciprocal;
      if constexpr (weighted) g = g * w;
      if constexpr (centring != Centring::none) g = g - rows.slopes[r].shift;
      v[r] = g - centred<centring>(at, rows.x[r], rows.statistics[r]) * rows.slopes[r].along;
      if constexpr (summed) v[r] = v[r] + at.load(rows.dsum[r]);
    }
    for (int r = 0; r < R; ++r) at.store(rows.dx[r], v[r]);
  }, streamed, head_of(rows.dx[0], n, streamed));
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
