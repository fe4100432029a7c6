// Channels as columns: blocks of rows, which of them are valid, and the statistics of neighbouring columns.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "channels/phases.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// Rows of a strip of columns of an outer index.
struct Block {
  int64_t outer, count;
  int64_t first_row;       // of the tensor
  int64_t first, columns;  // of the strip
  template <class T>
  T* at(T* tensor, int64_t width) const {
    return tensor + first_row * width + first;
  }
};

Block block_of(const ChannelsGeometry& g, int64_t items, int64_t item) {
  const int64_t outer = item / items, begin = item % items / g.strips() * g.item_size, stop = begin + g.item_size;
  const int64_t end = stop < g.rows ? stop : g.rows, first = item % g.strips() * strip;
  const int64_t columns = g.width - first < strip ? g.width - first : strip;
  return {outer, end - begin, outer * g.rows + begin, first, columns};
}

// Calls body(first column, columns) for the neighbouring columns of a statistic in one strip; of one channel where a
// channel has several.
template <class Body>
void for_each_run(const ChannelsGeometry& g, int64_t statistic, const Body& body) {
  const int64_t first = statistic % g.statistics_per_block * g.fold, span = g.span();
  const int64_t piece = g.per_channel == 1 ? g.fold : g.per_channel;
  for (int64_t start = first; start < g.width; start += span) {
    for (int64_t i = start; i < start + g.fold; i += piece) {
      for (int64_t begin = i, end = i + piece; begin < end;) {
        const int64_t left = strip - begin % strip, count = left < end - begin ? left : end - begin;
        body(begin, count);
        begin += count;
      }
    }
  }
}

// The factors of a block's columns, or of those from one on: of the affine, then those of its gradient.
template <class C>
struct ColumnFactors {
  C *mean, *scale, *shift, *reciprocal, *weight, *gradient_shift, *slope;
  // of remembered statistics: the affine in double, and 1 where it takes that since its terms may cancel
  double *exact_mean, *exact_scale, *exact_bias;
  uint8_t* cancels;
  ColumnFactors(const ChannelsCall& a, int64_t outer, int64_t first) {
    const int64_t stride = padded(a.geometry.width);
    double* row = static_cast<double*>(a.factors) + (outer - a.first_block) * factors_per_column * stride;
    const auto place = [&](auto*& factor) {
      factor = reinterpret_cast<std::decay_t<decltype(factor)>>(row) + first;
      row += stride;
    };
    for (C** factor : {&mean, &scale, &shift, &reciprocal, &weight, &gradient_shift, &slope}) place(*factor);
    for (double** factor : {&exact_mean, &exact_scale, &exact_bias}) place(*factor);
    place(cancels);
  }
  void set(int64_t i, const Affine<C>& affine) const {
    mean[i] = affine.mean;
    scale[i] = affine.scale;
    shift[i] = affine.shift;
  }
  void set(int64_t i, const Projection<C>& projection) const {
    reciprocal[i] = projection.reciprocal;
    weight[i] = projection.weight;
    gradient_shift[i] = projection.shift;
    slope[i] = projection.slope;
  }
  void set_remembered(int64_t i, const ChannelStatistics<C>& s, double weight, double bias) const {
    set(i, Affine<C>(s, weight, bias));
    exact_mean[i] = s.exact_mean();
    exact_scale[i] = s.exact_reciprocal() * weight;
    exact_bias[i] = bias;
    cancels[i] = may_cancel(s, weight, bias);
  }
  template <class Factors>
  void set(int64_t first, int64_t columns, const Factors& same) const {
    for (int64_t i = first; i < first + columns; ++i) set(i, same);
  }
  // y, or the input of the activation
  template <class At, class V>
  V affine(const At& at, V x) const {
    const Whole<C> whole{at.i};
    return (x - whole.load(mean)) * whole.load(scale) + whole.load(shift);
  }
  // v, or for x the affine in double where terms may cancel
  Vector<C> exact_where_it_cancels(int64_t i, Vector<C> x, Vector<C> v) const {
    constexpr int width = Lanes<C>::width;
    uint64_t any = 0;
    for (int at = 0; at < width; at += 8) {
      uint64_t word;
      std::memcpy(&word, cancels + i + at, sizeof(word));
      any |= word;
    }
    if (!any) return v;
    const auto bytes = load_bytes_of<VectorOf<uint8_t, width>>(cancels + i);
    Wide<C> wide(x);
    for (int part = 0; part < Wide<C>::parts; ++part) {
      const int64_t at = i + part * Lanes<double>::width;
      wide.part[part] = (wide.part[part] - load(exact_mean + at)) * load(exact_scale + at) + load(exact_bias + at);
    }
    return choose(-convert<LaneMask<C>>(bytes), wide.rounded(), v);
  }
};

template <class C>
void fill_affine(const ChannelsCall& a, int64_t statistic, const ChannelStatistics<C>& s) {
  ColumnFactors<C> factors(a, statistic / a.geometry.statistics_per_block, 0);
  for_each_run(a.geometry, statistic, [&](int64_t i, int64_t columns) {
    if (a.remembered) {
      for (int64_t k = i; k < i + columns; ++k) factors.set_remembered(k, s, a.weight_of(k), a.bias_of(k));
      return;
    }
    if (a.geometry.per_channel > 1) return factors.set(i, columns, Affine<C>(s, a.weight_of(i), a.bias_of(i)));
    for (int64_t k = i; k < i + columns; ++k) factors.set(k, Affine<C>(s, a.weight_of(k), a.bias_of(k)));
  });
}

// Whether every column is a statistic of its own: neighbouring ones are treated side by side.
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

// Whether the gradient of an outer index is computed in double.
template <bool extras>
bool is_exact(const ChannelsCall& a, int64_t outer) {
  return extras && has_few_elements(a, outer * a.geometry.statistics_per_block);
}
template <bool extras>
bool is_short(const ChannelsCall& a, int64_t outer) {
  return sums_are_short(a) && !is_exact<extras>(a, outer);
}

// Calls body(tile, position of its vector t, first row, end): a few rows at a time, and of these a few vectors of
// columns at a time, which leaves them registers for sums and factors.
template <class C, class Body>
void for_each_tile(int64_t rows, int64_t columns, int64_t rows_at_a_time, bool streamed, const Body& body) {
  constexpr int64_t width = Lanes<C>::width;
  constexpr int tile = 4;
  constexpr std::integral_constant<int, 1> one{};
  for (int64_t begin = 0; begin < rows; begin += rows_at_a_time) {
    const int64_t end = begin + rows_at_a_time < rows ? begin + rows_at_a_time : rows;
    int64_t i = 0;
    for (; i + tile * width <= columns; i += tile * width) {
      constexpr std::integral_constant<int, tile> several{};
      if (streamed) {
        body(several, [i](int t) { return Streamed<C>{{i + t * width}}; }, begin, end);
      } else {
        body(several, [i](int t) { return Whole<C>{i + t * width}; }, begin, end);
      }
    }
    for (; i + width <= columns; i += width) body(one, [i](int) { return Whole<C>{i}; }, begin, end);
    const int rest = static_cast<int>(columns - i);
    if (rest) body(one, [i, rest](int) { return Rest<C>{i, rest}; }, begin, end);
  }
}

// The rows of a block that are valid.
template <bool extras>
class ValidRows {
 public:
  ValidRows(const ChannelsCall& a, const Block& block)
      : mask_(extras && a.mask ? a.mask + block.first_row : nullptr), rows_(block.count) {}
  bool has(int64_t row) const { return !extras || !mask_ || mask_[row]; }
  int64_t count() const {
    int64_t valid = 0;
    for (int64_t row = 0; row < rows_; ++row) valid += has(row);
    return valid;
  }
  // How many rows it takes until `enough` of them are valid, or all.
  int64_t until(int64_t enough) const {
    int64_t row = 0;
    for (int64_t valid = 0; row < rows_ && valid < enough; ++row) valid += has(row);
    return row;
  }

 private:
  const uint8_t* mask_;
  int64_t rows_;
};

// The statistics of neighbouring columns, one value for each, for arithmetic in double.
template <class C>
struct ColumnStatistics {
  C mean[strip], mean_rest[strip];
  double weight[strip], bias[strip];
  double exact_mean[strip], exact_scale[strip], exact_reciprocal[strip], exact_mean_g[strip], exact_slope[strip];
  bool any_cancels = false;

  ColumnStatistics(const ChannelsCall& a, const Block& b) {
    const ChannelsGeometry& g = a.geometry;
    const int64_t span = g.span(), block = b.outer * g.statistics_per_block;
    int64_t column = b.first % span, index = block + column / g.fold, left = g.fold - column % g.fold;
    for (int64_t i = 0; i < b.columns;) {
      const int64_t end = b.columns - i < left ? b.columns : i + left;
      fill(a, index, b.first, i, end);
      column += end - i;
      i = end;
      left = g.fold;
      index = column == span ? block : index + 1;
      if (column == span) column = 0;
    }
    const int64_t end = padded(b.columns);
    for (int64_t i = b.columns; i < end; ++i) {
      mean[i] = mean_rest[i] = weight[i] = bias[i] = 0;
      exact_mean[i] = exact_scale[i] = exact_reciprocal[i] = exact_mean_g[i] = exact_slope[i] = 0;
    }
  }

  // the differences from the mean, rounded as doubles are
  template <class At, class T>
  Wide<C> wide_centred(const At& at, const T* x) const {
    const Whole<C> whole{at.i};
    if constexpr (Wide<C>::parts == 1) return Wide<C>((at.load(x) - whole.load(mean)) - whole.load(mean_rest));
    Wide<C> v(at.load(x));
    for (int i = 0; i < Wide<C>::parts; ++i) v.part[i] -= doubles(exact_mean, at.i, i);
    return v;
  }
  template <class At>
  Wide<C> wide_affine(const At& at, Wide<C> v) const {
    for (int i = 0; i < Wide<C>::parts; ++i) {
      v.part[i] = v.part[i] * doubles(exact_scale, at.i, i) + doubles(bias, at.i, i);
    }
    return v;
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
    for (int64_t i = begin; i < end; ++i) {
      mean[i] = s.mean;
      mean_rest[i] = s.mean_rest;
      weight[i] = a.weight_of(first + i);
      bias[i] = a.bias_of(first + i);
      exact_mean[i] = mean_of_all;
      exact_reciprocal[i] = reciprocal_of_all;
      exact_mean_g[i] = gradient;
      exact_slope[i] = along;
      exact_scale[i] = reciprocal_of_all * weight[i];
    }
    for (int64_t i = begin; a.remembered && i < end; ++i) any_cancels |= may_cancel(s, weight[i], bias[i]);
  }
};

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
