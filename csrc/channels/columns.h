// Channels as columns: blocks of rows, which of them are valid, and the statistics of neighbouring columns.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "channels/factors.h"
#include "channels/phases.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// Rows of a strip of columns of an outer index.
struct Block {
  int64_t outer, count;
  int64_t first_row;       // of the tensor
  int64_t first, columns;  // of the strip
  int64_t first_lane, lanes;
  template <class T>
  T* at(T* tensor, int64_t stride) const {
    return tensor + first_row * stride + first;
  }
};

// Whole rows, or a strip of them.
Block block_of(const ChannelsGeometry& g, int64_t outer, int64_t first_row, int64_t rows, int64_t first_lane,
               int64_t lanes) {
  const int64_t each = g.per_channel;
  return {outer, rows, outer * g.rows + first_row, first_lane * each, lanes * each, first_lane, lanes};
}
Block block_of(const ChannelsGeometry& g, int64_t items, int64_t item) {
  const int64_t strips = g.strips, outer = item / items, of_outer = item % items;
  const int64_t begin = of_outer / strips * g.item_size, first = of_outer % strips * g.lanes_of_strip;
  return block_of(g, outer, begin, std::min(g.item_size, g.rows - begin), first,
                  std::min(g.lanes_of_strip, g.lanes_of_row - first));
}

// Calls body(first lane, lanes) for the neighbouring lanes of a statistic in one strip.
template <class Body>
void for_each_run(const ChannelsGeometry& g, int64_t statistic, const Body& body) {
  const int64_t first = statistic % g.statistics_per_block * g.fold, strip = g.lanes_of_strip;
  for (int64_t start = first; start < g.lanes_of_row; start += g.channels) {
    if (g.strips == 1) {  // a division takes long
      body(start, g.fold);
      continue;
    }
    for (int64_t begin = start, end = start + g.fold; begin < end;) {
      const int64_t count = std::min(strip - begin % strip, end - begin);
      body(begin, count);
      begin += count;
    }
  }
}

// Columns' factors from those of lanes [first, first + count).
template <class C>
void spread(const ChannelsCall& a, int64_t outer, int64_t first, int64_t count,
            std::initializer_list<C* Factors<C>::*> factors) {
  const int64_t each = a.geometry.per_channel;
  if (each == 1) return;
  const Factors<C> lanes = lane_factors<C>(a, outer, first), columns = column_factors<C>(a, outer, first * each);
  for (auto factor : factors) repeat_each(lanes.*factor, count, each, columns.*factor);
}
template <class C>
void spread_affine(const ChannelsCall& a, int64_t outer, int64_t first, int64_t count) {
  using F = Factors<C>;
  spread<C>(a, outer, first, count, {&F::mean, &F::scale, &F::shift});
}
template <class C>
void spread_gradient(const ChannelsCall& a, int64_t outer, int64_t first, int64_t count) {
  using F = Factors<C>;
  spread<C>(a, outer, first, count, {&F::reciprocal, &F::weight, &F::gradient_shift, &F::slope});
}

// The same of remembered statistics, from the channels' factors.
template <class C>
void spread_remembered(const ChannelsCall& a) {
  const ChannelsGeometry& g = a.geometry;
  const Factors<C> lanes = lane_factors<C>(a, 0), columns = column_factors<C>(a, 0);
  const auto spread_one = [&](auto factor) {
    auto* const values = lanes.*factor;
    for (int64_t k = 1; k < g.repeat; ++k) std::memcpy(values + k * g.channels, values, g.channels * sizeof(*values));
    if (g.per_channel > 1) repeat_each(values, g.lanes_of_row, g.per_channel, columns.*factor);
  };
  using F = Factors<C>;
  for (auto factor : {&F::mean, &F::scale, &F::shift}) spread_one(factor);
  if (!a.may_cancel) return;
  for (auto factor : {&F::exact_mean, &F::exact_scale, &F::exact_bias}) spread_one(factor);
  spread_one(&F::cancels);
  const auto end = [&](auto* values) { std::fill(values + g.width, values + padded(g.width), 0); };
  for (double* values : {columns.exact_mean, columns.exact_scale, columns.exact_bias}) end(values);
  end(columns.cancels);
}

// Whether a lane shares its statistic with none beside it: neighbouring statistics are treated side by side.
inline bool lanes_are_statistics(const ChannelsGeometry& g) { return g.fold == 1; }

// Calls body(lane) for a statistic's lane in each of the rows that are taken for one.
template <class Body>
void for_each_repeat(const ChannelsGeometry& g, int64_t first, const Body& body) {
  for (int64_t lane = first; lane < g.lanes_of_row; lane += g.channels) body(lane);
}

// Calls body(first, outer index, the first's number there, how many) for the statistics [begin, end), a strip of lanes
// or as many at a time.
template <class Body>
void for_each_strip(const ChannelsGeometry& g, int64_t begin, int64_t end, const Body& body) {
  const int64_t strip = g.lanes_of_strip, per_block = g.statistics_per_block;
  while (begin < end) {
    const int64_t first = begin % per_block;
    const int64_t count = std::min({per_block - first, strip - first % strip, end - begin});
    body(begin, begin / per_block, first, count);
    begin += count;
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

// Where the gradients of a block's first row are kept after the activation, from the sums to dx, or null.
template <bool extras>
double* kept_gradients(const ChannelsCall& a, const Block& b) {
  if (!a.kept || !is_exact<extras>(a, b.outer)) return nullptr;
  return static_cast<double*>(a.kept) + (b.first_row - b.outer * a.geometry.rows) * kept_stride(a.geometry) + b.first;
}

// The affine of neighbouring statistics of an outer index; their means, where a gradient takes no more.
template <class C>
void fill_affine(const ChannelsCall& a, const StatisticsStrip<C>& s, int64_t first, int64_t statistics) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = first / g.statistics_per_block;
  const bool only_mean = a.dy && !a.remembered && a.options.activation == Activation::none;
  const auto fill = [&](const auto& own, int64_t lane, int64_t lanes) {
    const Factors<C> factors = lane_factors<C>(a, outer, lane);
    only_mean ? factors.set_mean(own, lanes) : factors.set_affine(own, lanes, a.weights_from(lane), a.biases_from(lane));
    spread_affine<C>(a, outer, lane, lanes);
  };
  if (lanes_are_statistics(g)) {
    return for_each_repeat(g, first % g.statistics_per_block, [&](int64_t lane) { fill(s, lane, statistics); });
  }
  for (int64_t i = 0; i < statistics; ++i) {
    for_each_run(g, first + i, [&](int64_t lane, int64_t lanes) { fill(s.at(i), lane, lanes); });
  }
}

// Calls body(tile, position of its vector t, first row, end) for the tiles of so many vectors; returns where they end.
template <class C, template <class> class At, int vectors, class Body>
EVENKEEL_INLINE int64_t walk_tiles(int64_t i, int64_t columns, int64_t begin, int64_t end, const Body& body) {
  constexpr int64_t width = Lanes<C>::width;
  constexpr std::integral_constant<int, vectors> tile{};
  for (; i + vectors * width <= columns; i += vectors * width) {
    body(tile, [i](int t) { return At<C>{i + t * width}; }, begin, end);
  }
  return i;
}

// Vectors of columns at a time, which leaves them registers for sums and factors.
constexpr int vectors_of_tile = register_bytes == 64 ? 4 : 2;

constexpr int64_t rows_of_tile = 8;  // where columns' factors are many

// Calls body for tiles of a few rows and a few columns, in lanes of L. By value, and best a body of values: what it refers
// to is read again behind each store.
template <class L, class Body>
void for_each_tile(int64_t rows, int64_t columns, int64_t rows_at_a_time, Body body) {
  constexpr int vectors = is_in_order<L> ? vectors_of_tile : vectors_of_tile / 2;
  for (int64_t begin = 0; begin < rows; begin += rows_at_a_time) {
    const int64_t end = std::min(begin + rows_at_a_time, rows);
    int64_t i = walk_tiles<L, Whole, vectors>(0, columns, begin, end, body);
    if (vectors > 1) i = walk_tiles<L, Whole, 1>(i, columns, begin, end, body);
    const int rest = static_cast<int>(columns - i);
    if (rest) body(std::integral_constant<int, 1>{}, [i, rest](int) { return Rest<L>{i, rest}; }, begin, end);
  }
}

// The same for columns that fill cache lines, whose stores go past the caches: of a line the whole at once, since what
// leaves in parts is joined in memory.
template <class T, class L, class Body>
void for_each_streamed_tile(int64_t rows, int64_t columns, int64_t rows_at_a_time, Body body) {
  constexpr int line = std::max<int>(1, cache_line / (Lanes<L>::width * sizeof(T)));
  constexpr int vectors = std::max(line, is_in_order<L> ? vectors_of_tile : vectors_of_tile / 2);
  for (int64_t begin = 0; begin < rows; begin += rows_at_a_time) {
    const int64_t end = std::min(begin + rows_at_a_time, rows);
    const int64_t i = walk_tiles<L, Streamed, vectors>(0, columns, begin, end, body);
    if (vectors > line) walk_tiles<L, Streamed, line>(i, columns, begin, end, body);
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
  C mean[longest_strip], mean_rest[longest_strip];
  double weight[longest_strip], bias[longest_strip], exact_mean[longest_strip], exact_scale[longest_strip],
      exact_reciprocal[longest_strip], exact_mean_g[longest_strip], exact_slope[longest_strip];

  // `for_sums`: only what the sums of a gradient need
  ColumnStatistics(const ChannelsCall& a, const Block& b, bool for_sums = false) : for_sums_(for_sums) {
    const ChannelsGeometry& g = a.geometry;
    const int64_t block = b.outer * g.statistics_per_block, end_of_vector = padded(b.columns);
    // numbers that memory holds by chance may be denormal, which takes many times as long
    for (C* values : {mean, mean_rest}) std::fill(values + b.columns, values + end_of_vector, C(0));
    for (double* values : {weight, bias, exact_mean, exact_scale, exact_reciprocal, exact_mean_g, exact_slope}) {
      std::fill(values + b.columns, values + end_of_vector, 0.0);
    }
    StatisticsStrip<C> s;
    for (int64_t lane = 0, end; lane < b.lanes; lane = end) {
      const int64_t channel = (b.first_lane + lane) % g.channels, first = block + channel / g.fold;
      if (lanes_are_statistics(g)) {
        end = std::min(b.lanes, lane + g.channels - channel);
        s.restore(a, first, end - lane);
        fill(a, b, s, first, lane, end, 1);
      } else {
        end = std::min(b.lanes, lane + g.fold - channel % g.fold);
        fill(a, b, restore_statistics<C>(a, first), first, lane, end, 0);
      }
    }
  }

  // the differences from the mean, rounded as doubles are
  template <class At, class T>
  Wide<C> wide_centred(const At& at, const T* x) const {
    const Whole<C> whole{at.i};
    if constexpr (Wide<C>::parts == 1) return Wide<C>((at.load(x) - whole.load(mean)) - whole.load(mean_rest));
    Wide<C> v = load_as_doubles<C>(at, x);
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
  const bool for_sums_;

  // Lanes [begin, end) of the strip, of the statistics from `first` on, or where the step is 0 all of that one.
  template <class Statistics>
  void fill(const ChannelsCall& a, const Block& b, const Statistics& s, int64_t first, int64_t begin, int64_t end,
            int64_t step) {
    const int64_t each = a.geometry.per_channel, lane = b.first_lane + begin;
    if (begin >= end) return;  // never: g++ warns of what would not be set
    const auto spread = [&](auto* values, const auto& value) {
      const auto put = [&](auto* to) {
        for_each_position<double>(end - begin, [&](auto at) { store_rounded(at, to, value(at)); });
      };
      if (each == 1) return put(values + begin);
      std::remove_pointer_t<decltype(values)> lanes[longest_strip];
      put(lanes);
      repeat_each(lanes, end - begin, each, values + begin * each);
    };
    const auto parameter = [&](auto at, const double* values, double otherwise) {
      return values ? at.load(values + lane) : Doubles{} + otherwise;
    };
    const auto reciprocal = [&](auto at) { return s.exact_reciprocal(at.i); };
    const auto own_weight = [&](auto at) { return parameter(at, a.weight, 1); };
    spread(exact_mean, [&](auto at) { return s.wide_mean(at.i) + s.wide_mean_rest(at.i); });
    if (sizeof(C) == sizeof(double)) spread(mean, [&](auto at) { return s.wide_mean(at.i); });
    if (sizeof(C) == sizeof(double) || !for_sums_) spread(mean_rest, [&](auto at) { return s.wide_mean_rest(at.i); });
    if (a.options.activation != Activation::none) {
      spread(exact_scale, [&](auto at) { return reciprocal(at) * own_weight(at); });
      spread(bias, [&](auto at) { return parameter(at, a.bias, 0); });
    }
    if (!for_sums_) {
      double means_g[longest_strip], means_gx[longest_strip];
      for (int64_t i = 0; i < end - begin; ++i) {
        means_g[i] = a.remembered ? 0 : a.means[(first + i * step) * 2];
        means_gx[i] = a.remembered ? 0 : a.means[(first + i * step) * 2 + 1];
      }
      spread(weight, own_weight);
      spread(exact_reciprocal, reciprocal);
      spread(exact_mean_g, [&](auto at) { return at.load(means_g); });
      spread(exact_slope, [&](auto at) { return reciprocal(at) * s.wide_bend(at.i) * at.load(means_gx); });
    }
  }
};

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
