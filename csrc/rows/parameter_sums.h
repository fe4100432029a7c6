// The gradients of weight and bias over the rows of a task.
#pragma once

#include <algorithm>

#include "rows/kernels.h"
#include "core/pairs.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// Adds float sums to those in double, of which the first begin.
template <class L, bool first, class C>
void add_to(double* total, const C* part, int64_t n) {
  const auto add = [](double* to, const C* from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = (first ? 0 : to[i]) + from[i];
  };
  if constexpr (std::is_same_v<L, pair>) {
    float natural[32];
    for (int64_t start = 0; start < n; start += 32) {
      store_joined(natural, Whole<pair>{start}.load_in_order(part));
      add(total + start, natural, std::min<int64_t>(32, n - start));
    }
  } else {
    add(total, part, n);
  }
}

// The parameters' gradients of one task: float sums over a few rows, in the order in which rows are read, and double
// ones over all. Rows that are not of the usual kind have float sums of their own where that is not the elements'
// order.
template <class L, class C>
class ParameterSums {
 public:
  ParameterSums(const RowsBackward& a, int64_t task)
      : features_(a.spec.features),
        stride_(padded_pairs(features_)),
        buffer_(is_float ? 4 * stride_ : 0),
        dweight_total_(a.dweight_partial ? a.dweight_partial + task * a.padded_features : nullptr),
        dbias_total_(a.dbias_partial ? a.dbias_partial + task * a.padded_features : nullptr) {
    if constexpr (!is_float) start_totals();
  }
  C* dweight() const { return part(dweight_total_, 0); }
  C* dbias() const { return part(dbias_total_, 1); }
  C* dweight_of_unusual() {
    start_unusual();
    return part(dweight_total_, apart ? 2 : 0);
  }
  C* dbias_of_unusual() {
    start_unusual();
    return part(dbias_total_, apart ? 3 : 1);
  }
  double* dweight_total() {
    start_totals();
    return dweight_total_;
  }
  double* dbias_total() {
    start_totals();
    return dbias_total_;
  }

  // The sums of a few rows begin,
  void start() {
    if constexpr (is_float) std::memset(buffer_.data(), 0, 2 * stride_ * sizeof(C));
  }
  // and are added.
  void flush() {
    if constexpr (is_float) {
      started_ ? add<L, false>(0) : add<L, true>(0);
      started_ = true;
      if (unusual_) add<C, false>(2);
      unusual_ = false;
    }
  }

 private:
  static constexpr bool is_float = std::is_same_v<C, float>, apart = std::is_same_v<L, pair>;
  void start_totals() {
    if (started_) return;
    for (double* total : {dweight_total_, dbias_total_}) {
      if (total) std::memset(total, 0, features_ * sizeof(double));
    }
    started_ = true;
  }
  void start_unusual() {
    if (!apart || unusual_) return;
    std::memset(buffer_.data() + 2 * stride_, 0, 2 * stride_ * sizeof(C));
    unusual_ = true;
  }
  template <class Order, bool first>
  void add(int number) const {
    if (dweight_total_) add_to<Order, first>(dweight_total_, part(dweight_total_, number), features_);
    if (dbias_total_) add_to<Order, first>(dbias_total_, part(dbias_total_, number + 1), features_);
  }
  C* part(double* total, int number) const {
    if constexpr (is_float) {
      return total ? buffer_.data() + number * stride_ : nullptr;
    } else {
      return total;  // no shorter sums
    }
  }
  int64_t features_, stride_;
  Buffer<C> buffer_;
  double *dweight_total_, *dbias_total_;
  bool unusual_ = false, started_ = false;  // whether sums of unusual rows, and those in double, hold anything
};

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
