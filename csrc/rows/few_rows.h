// The backward of a few long rows: first the means of each row, then what follows from them for some features of all rows.
// So all threads take part even in one task, and the sums of the parameters' gradients stay in the nearest cache. They
// are added in the same order as by tasks.
#pragma once

#include <algorithm>

#include "rows/gradients.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// Calls body with the centring that rows usually have, as a type.
template <class Body>
void with_usual_centring(const RowsSpec& spec, const Body& body) {
  spec.center() ? body(std::integral_constant<Centring, Centring::rounded>{})
                : body(std::integral_constant<Centring, Centring::none>{});
}

template <class T>
class FewRows {
 public:
  using C = Opmath<T>;
  FewRows(const RowsBackward& a, void* slopes) : call_(a), n_(a.spec.features), slopes_(static_cast<Slopes<C>*>(slopes)) {}

  // The slopes of rows; false where one is not of the usual kind.
  bool find_slopes(int64_t begin, int64_t end) const {
    using L = typename Summed<T>::lanes;
    const Buffer<C> parameter(is_in_order<L> ? 0 : padded_pairs(n_));
    const C* const weight = in_order<L>(static_cast<const C*>(call_.weight), parameter.data(), n_);
    for (int64_t row = begin; row < end; ++row) {
      const Statistics<C> s = statistics(row);
      const Centring usual = call_.spec.center() ? Centring::rounded : Centring::none;
      if (!safe(s) || centring_of(call_.spec, s) != usual) return false;
      BackwardGroup<1, C, T> group{{row_at<T>(call_.x, row)}, {row_at<T>(call_.dy, row)}};
      group.set_statistics(0, s);
      GradientSums<1> sums;
      with_usual_centring(call_.spec, [&](auto centring) {
        constexpr Centring known = decltype(centring)::value;
        weight ? sum_rows<1, known, true, 1>(n_, group, 0, weight, static_cast<C*>(nullptr), static_cast<C*>(nullptr), sums)
               : sum_rows<1, known, false, 1>(n_, group, 0, weight, static_cast<C*>(nullptr), static_cast<C*>(nullptr), sums);
        take_slopes<known>(call_.spec, sums, group);
      });
      slopes_[row] = {group.shift[0], group.along[0]};
    }
    return true;
  }

  // dx of all rows and the parameters' gradients, of the features of one block.
  void write(int64_t block, const Values& dweight, const Values& dbias) const {
    with_usual_centring(call_.spec, [&](auto centring) {
      constexpr Centring known = decltype(centring)::value;
      call_.weight ? write<known, true>(block, dweight, dbias) : write<known, false>(block, dweight, dbias);
    });
  }

 private:
  template <Centring centring, bool weighted>
  __attribute__((flatten)) void write(int64_t block, const Values& dweight, const Values& dbias) const {
    using V = Vector<C>;
    const int64_t first = block * features_of_block, count = std::min(features_of_block, n_ - first);
    double dweight_total[features_of_block] = {}, dbias_total[features_of_block] = {};
    C more_dweight[features_of_block] = {}, more_dbias[features_of_block] = {};
    const C* const weight = weighted ? static_cast<const C*>(call_.weight) + first : nullptr;
    for (int64_t row = 0; row < call_.spec.rows; ++row) {
      const Statistics<C> s = statistics(row);
      const Slopes<C> slopes = slopes_[row];
      const T *x = row_at<T>(call_.x, row) + first, *dy = row_at<T>(call_.dy, row) + first;
      T* const dx = row_at<T>(call_.dx, row);
      const T* const dsum = row_at<T>(call_.dsum, row);
      for_each_position<C>(count, [&](auto at) {
        const V upstream = at.load(dy), difference = centred<centring>(at, x, s);
        const V x_hat = at.keep(difference * s.reciprocal);
        at.store(more_dweight, at.load(more_dweight) + upstream * x_hat);
        at.store(more_dbias, at.load(more_dbias) + upstream);
        if (!dx) return;
        V g = upstream * s.reciprocal;
        if constexpr (weighted) g = g * at.load(weight);
        if constexpr (centring != Centring::none) g = g - slopes.shift;
        g = g - difference * slopes.along;
        at.store(dx + first, dsum ? g + at.load(dsum + first) : g);
      });
      if ((row + 1) % call_.rows_per_task && row + 1 < call_.spec.rows) continue;
      add(more_dweight, dweight_total, count);
      add(more_dbias, dbias_total, count);
    }
    save(dweight, first, dweight_total, count);
    save(dbias, first, dbias_total, count);
  }
  // The sums of a task.
  static void add(C* sums, double* total, int64_t count) {
    for (int64_t i = 0; i < count; ++i) total[i] += sums[i];
    std::fill_n(sums, count, C(0));
  }
  static void save(const Values& gradient, int64_t first, const double* total, int64_t count) {
    if (!gradient.data) return;
    with_floating(gradient.dtype, [&](auto t) { narrow(static_cast<decltype(t)*>(gradient.data) + first, total, count); });
  }
  Statistics<C> statistics(int64_t row) const {
    return restore(call_.spec, static_cast<const C*>(call_.statistics) + row * call_.spec.statistics_width());
  }
  const RowsBackward& call_;
  const int64_t n_;
  Slopes<C>* const slopes_;
};

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
