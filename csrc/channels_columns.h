// Channels as columns: blocks of rows, which of them are valid, and the statistics of neighbouring columns.
#pragma once

#include "channels_common.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

constexpr int64_t strip = 512;  // columns at a time: their sums stay in the first-level cache

struct Block {
  int64_t outer, begin, end, count;  // rows of an outer index
  int64_t first_row;                 // of the tensor
};

Block block_of(const ChannelsGeometry& g, int64_t items, int64_t item) {
  const int64_t outer = item / items, begin = item % items * g.item_size, stop = begin + g.item_size;
  const int64_t end = stop < g.rows ? stop : g.rows;
  return {outer, begin, end, end - begin, outer * g.rows + begin};
}

// The rows of a block that are valid.
template <bool extras>
class ValidRows {
 public:
  ValidRows(const ChannelsCall& a, const Block& block)
      : mask_(extras && a.mask ? a.mask + block.first_row : nullptr), rows_(block.count) {}
  bool has(int64_t row) const { return !extras || !mask_ || mask_[row]; }
  int64_t count() const {
    int64_t found = 0;
    for (int64_t row = 0; row < rows_; ++row) found += has(row);
    return found;
  }
  // Rows from the first valid one until `wanted` are valid, or all.
  int64_t until(int64_t wanted) const {
    int64_t row = 0;
    for (int64_t found = 0; row < rows_ && found < wanted; ++row) found += has(row);
    return row;
  }

 private:
  const uint8_t* mask_;
  int64_t rows_;
};

// The statistics of neighbouring columns, one value for each.
template <class C>
struct ColumnStatistics {
  C mean[strip], mean_rest[strip], reciprocal[strip], weight[strip], scale[strip], bias[strip], mean_g[strip],
      slope[strip];
  C cancels[strip];  // 1 where terms may cancel
  double exact_mean[strip], exact_scale[strip], exact_reciprocal[strip], exact_mean_g[strip], exact_slope[strip];
  bool any_cancels = false;

  ColumnStatistics(const ChannelsCall& a, int64_t outer, int64_t first, int64_t columns) {
    const ChannelsGeometry& g = a.geometry;
    const int64_t span = g.span(), block = outer * g.statistics_per_block;
    int64_t column = first % span, index = block + column / g.fold, left = g.fold - column % g.fold;
    for (int64_t i = 0; i < columns;) {
      const int64_t end = columns - i < left ? columns : i + left;
      fill(a, index, first, i, end);
      column += end - i;
      i = end;
      left = g.fold;
      index = column == span ? block : index + 1;
      if (column == span) column = 0;
    }
    const int64_t end = padded(columns);
    for (int64_t i = columns; i < end; ++i) {
      mean[i] = mean_rest[i] = reciprocal[i] = weight[i] = scale[i] = bias[i] = mean_g[i] = slope[i] = cancels[i] = 0;
      exact_mean[i] = exact_scale[i] = exact_reciprocal[i] = exact_mean_g[i] = exact_slope[i] = 0;
    }
  }

  template <class At, class T>
  typename Lanes<C>::vector centred(const At& at, const T* x) const {
    const Whole<C> whole{at.i};
    return (at.load(x) - whole.load(mean)) - whole.load(mean_rest);
  }
  // the differences from the mean, rounded as doubles are
  template <class At, class T>
  Wide<C> wide_centred(const At& at, const T* x) const {
    if constexpr (Wide<C>::parts == 1) return Wide<C>(centred(at, x));
    Wide<C> v(at.load(x));
    for (int i = 0; i < Wide<C>::parts; ++i) v.part[i] -= doubles(exact_mean, at.i, i);
    return v;
  }
  // the input of the activation
  template <class At>
  typename Lanes<C>::vector affine(const At& at, typename Lanes<C>::vector centred) const {
    const Whole<C> whole{at.i};
    return centred * whole.load(scale) + whole.load(bias);
  }
  template <class At>
  Wide<C> wide_affine(const At& at, Wide<C> v) const {
    const Wide<C> shift(Whole<C>{at.i}.load(bias));
    for (int i = 0; i < Wide<C>::parts; ++i) v.part[i] = v.part[i] * doubles(exact_scale, at.i, i) + shift.part[i];
    return v;
  }
  // in double where terms cancel
  template <class At, class T>
  typename Lanes<C>::vector exact_affine(const At& at, const T* x) const {
    const auto wide = wide_affine(at, wide_centred(at, x)).rounded();
    return choose_lanes<C>(Whole<C>{at.i}.load(cancels) != C(0), wide, affine(at, centred(at, x)));
  }
  // the part of doubles that belongs to part i of the vector at a column
  static Doubles doubles(const double* values, int64_t column, int i) {
    return load(values + column + i * Lanes<double>::width);
  }

 private:
  // Columns [begin, end) of the strip, which share a statistic.
  void fill(const ChannelsCall& a, int64_t index, int64_t first, int64_t begin, int64_t end) {
    const ChannelStatistics<C> s = restore_statistics<C>(a, index);
    const double reciprocal_of_all = s.exact_reciprocal(), mean_of_all = s.exact_mean();
    const double gradient = a.means ? a.means[index * 2] : 0;
    const double along = a.means ? exact_slope_of(s, a.means[index * 2 + 1]) : 0;
    const C* weights = a.weight ? static_cast<const C*>(a.weight) + first : nullptr;
    const C* biases = a.bias ? static_cast<const C*>(a.bias) + first : nullptr;
    for (int64_t i = begin; i < end; ++i) {
      mean[i] = s.mean;
      mean_rest[i] = s.mean_rest;
      reciprocal[i] = s.reciprocal;
      weight[i] = weights ? weights[i] : 1;
      bias[i] = biases ? biases[i] : 0;
      mean_g[i] = static_cast<C>(gradient);
      slope[i] = static_cast<C>(along);
      cancels[i] = 0;
      exact_mean[i] = mean_of_all;
      exact_reciprocal[i] = reciprocal_of_all;
      exact_mean_g[i] = gradient;
      exact_slope[i] = along;
      exact_scale[i] = reciprocal_of_all * static_cast<double>(weight[i]);
      scale[i] = static_cast<C>(exact_scale[i]);
    }
    if (!a.remembered) return;
    for (int64_t i = begin; i < end; ++i) {
      if (!may_cancel(s, weight[i], bias[i])) continue;
      cancels[i] = 1;
      any_cancels = true;
    }
  }
};

}  // namespace
}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
