// How the channel operators divide a tensor, by its shape and dtype; where it changes no bits, by the caches and threads.
#pragma once

#include <algorithm>
#include <numeric>

#include "channels/kernels.h"
#include "core/caches.h"
#include "core/runtime.h"

namespace evenkeel {

constexpr int64_t few_positions = 16;  // with fewer, a channel's run fills no vector

// How many rows are treated as one, of the divisors of the rows: of few columns enough to fill vectors, or tiles of vectors
// in the gradient with remembered statistics. Where few wide rows would be left, what is computed for each column once takes
// longer than a vector that is not full.
inline int64_t repeats_of(int64_t rows, int64_t columns, bool tiles) {
  constexpr int64_t lanes = 16, many_columns = 64, few_rows = 32;
  if (columns >= many_columns) return 1;
  const int64_t unit = tiles ? many_columns : lanes;
  int64_t repeat = unit / std::gcd(unit, columns);
  const auto wide = [&] { return repeat > 1 && columns * repeat > lanes; };
  while (rows % repeat || (rows / repeat < few_rows && wide())) repeat /= 2;
  return repeat;
}

// How many rows fill vectors and whole cache lines, which leave the caches at once; 0 where no divisor of the rows does, or
// where their factors would crowd the nearest cache.
inline int64_t rows_of_lines(int64_t rows, int64_t columns, DType dtype) {
  constexpr int64_t lanes = 16, most_columns = 1024, few_rows = 32;
  const int64_t unit = std::max(lanes, cache_line / size_of(dtype)), repeat = unit / std::gcd(unit, columns);
  return rows % repeat == 0 && rows / repeat >= few_rows && columns * repeat <= most_columns ? repeat : 0;
}

// Contiguous groups of few positions are rows of their own: short runs, of a channel each, would take longer. From 16
// positions on that is so for short rows alone, in the backward up to 32 positions for all; whatever the number of samples:
// it must not change the bits. A group of one channel where all of it is computed in double.
inline bool are_rows(int64_t positions, int64_t share, bool backward) {
  constexpr int64_t several_vectors = 2 * few_positions;
  if (share == 1) return positions <= computed_in_double;
  const int64_t count = share * positions;
  if (positions < few_positions || (backward && positions <= several_vectors)) return true;
  if (!backward) return count <= (positions < several_vectors ? 512 : 160);
  return positions < 100 && count <= 400;
}

// Groups that are treated side by side. Where channels lie innermost a run of them that fills vectors is best left as it
// lies, of several groups one that fills more than a vector too. Where each channel is a group they are lanes already: of
// columns, whose gradients in double take longer.
inline bool are_small(const ChannelsGeometry& g, int64_t share, bool last, bool runs, bool backward) {
  constexpr int64_t vector = 16;
  if (!last) return share == 1 && g.count <= vector;
  if (runs && (share % vector == 0 || (share > vector && g.groups > 1))) return false;
  return g.positions <= few_positions && g.count <= most_of_small && (share > 1 || backward);
}

// Samples of a block that are worth it even where the blocks are few: those of small groups fill lanes. In the backward
// rows of several channels have columns, which are set up and added once a block.
inline int64_t fewest_samples(const ChannelsGeometry& g, int64_t batch, bool backward) {
  constexpr int64_t lanes = 16, few_samples = 4, few_blocks = 4, most_elements = 24576;
  if (g.small) return lanes / g.groups;
  if (g.innermost || g.groups == g.channels || !backward) return 1;
  return std::min({few_samples, batch / few_blocks, most_elements / (g.channels * g.positions)});
}

inline void walk_groups(ChannelsGeometry& g, int64_t batch, bool backward) {
  constexpr int64_t most_samples = 16, many_blocks = 8;
  const int64_t fewest = std::clamp<int64_t>(fewest_samples(g, batch, backward), 1, std::min(batch, most_samples));
  const int64_t samples = std::clamp(batch / many_blocks, fewest, most_samples);
  g.walk = Walk::groups;
  if (!g.innermost) {
    g.per_channel = g.positions;
    g.width = g.channels * g.positions;
  }
  g.outer = batch;
  g.blocks = ceil_divide(batch, samples);
  g.statistics_per_block = g.measure_items = g.sum_items = samples * g.groups;
}

// Strips of `all` lanes, of which `share` neighbouring ones have a statistic: at most so many, whole statistics or a part
// of one. Strips that are alike take less time than a long one and a short one.
inline int64_t lanes_of_strip(int64_t all, int64_t most, int64_t share) {
  constexpr int64_t tile = 64;
  if (share > most) return ceil_divide(share, ceil_divide(share, most));
  const int64_t longest = most / share * share, unit = share == 1 ? tile : share;
  return std::min(longest, ceil_divide(ceil_divide(all, ceil_divide(all, longest)), unit) * unit);
}

template <class Repeat>
inline void walk_columns(ChannelsGeometry& g, int64_t batch, bool last, const Repeat& repeat_of) {
  constexpr int64_t fewest_rows = 32, many_items = 16, block = 65536, few_written = 16384;
  const int64_t share = g.groups ? g.channels / g.groups : 1;
  g.walk = Walk::columns;
  g.per_channel = last ? 1 : g.positions;
  g.fold = share;
  g.outer = g.groups ? batch : 1;
  g.rows = (g.groups ? 1 : batch) * (last ? g.positions : 1);
  g.repeat = repeat_of(g.rows, g.channels * g.per_channel);
  g.rows /= g.repeat;
  g.lanes_of_row = g.channels * g.repeat;
  g.width = g.row_stride = g.lanes_of_row * g.per_channel;
  g.lanes_of_strip = lanes_of_strip(g.lanes_of_row, longest_strip / g.per_channel,
                                    g.repeat > 1 ? g.channels : share);
  g.strips = ceil_divide(g.lanes_of_row, g.lanes_of_strip);
  g.blocks = g.outer;
  g.statistics_per_block = g.groups ? g.groups : g.channels;
  // a single block is shared among all threads
  const int64_t most_rows = g.groups ? g.rows : ceil_divide(g.rows, many_items);
  g.item_size = std::max(fewest_rows, std::min(most_rows, block / std::clamp<int64_t>(g.width, 1, longest_strip)));
  // what follows from the statistics is done anew for each part that is written: a small tensor has one for each thread
  const int64_t width = std::max<int64_t>(g.width, 1);
  const int64_t of_thread = std::max(few_written, g.rows * width / torch::stable::get_num_threads());
  g.rows_written = std::max<int64_t>(1, std::min(std::max(most_rows, of_thread / width), block / width));
  g.measure_items = g.sum_items = ceil_divide(g.rows, g.item_size) * g.strips;
}

inline void walk_planes(ChannelsGeometry& g, int64_t batch) {
  constexpr int64_t item = 4096;
  static_assert(item / few_positions <= most_together);  // the runs of an item are written together
  g.outer = batch;
  g.blocks = g.statistics;
  g.statistics_per_block = 1;
  g.item_size = g.positions < item ? item / g.positions * g.positions : item;
  g.measure_items = ceil_divide(g.count, g.item_size);
}

// With fewer positions than this, neighbouring channels are treated together as columns: their factors, one for each
// column, are computed once for all samples. Applying remembered statistics gives the same bits either way. Their gradient
// is written in another order than memory's: past the caches that costs more than it saves, but where SiLU costs most. Of few
// channels columns compute in double what planes do not; a sample's gradient must not depend on the batch.
inline int64_t fewest_of_planes(const ChannelsShape& shape, const ChannelsOptions& options, bool measured, bool backward) {
  constexpr int64_t few = 4, some = 8, many = 32, many_channels = 16;
  const int64_t batch = shape.batch;
  if (measured) return batch < many ? 32 : 64;
  if (backward && (batch < few || shape.channels < many_channels)) return 16;
  if (backward) return options.activation == Activation::silu ? 56 : 32;
  return batch < some ? 16 : batch < many ? 17 : 33;
}

// measured: the statistics are this input's; remembered ones may be applied in any order
inline ChannelsGeometry geometry_of(const ChannelsShape& shape, DType dtype, const ChannelsOptions& options, bool masked,
                                    bool measured, bool backward) {
  constexpr int64_t fewest_positions_of_columns = 5, many_channels = 32, few_samples = 8;
  ChannelsGeometry g{};
  const int64_t batch = shape.batch, groups = options.groups;
  const bool last = shape.last && shape.positions > 1;
  g.channels = shape.channels;
  g.positions = shape.positions;
  g.groups = groups;
  const int64_t share = groups ? g.channels / groups : 1;
  g.statistics = groups ? batch * groups : g.channels;
  g.count = groups ? share * g.positions : batch * g.positions;
  g.per_channel = g.repeat = 1;
  g.width = g.channels;
  const int64_t fewest_positions = masked   ? 2
                                   : groups ? few_positions
                                            : fewest_of_planes(shape, options, measured, backward);
  // Few positions of many channels, or of such as fill vectors: sums for each column would take longer than a group's.
  // Vectors half full do for very few positions, and for gradients, except of 16 bits: their ends take long to widen.
  const bool half_full_do = g.positions < fewest_positions_of_columns || (backward && size_of(dtype) > 2);
  const bool fills = half_full_do ? 2 * share > padded(share) : 4 * share > 3 * padded(share);
  const bool measured_groups = groups && !masked && measured;
  const bool runs = measured_groups && last && g.positions < few_positions && (share >= many_channels || fills);
  g.small = measured_groups && are_small(g, share, last, runs, backward);
  g.innermost = last && (runs || g.small);
  // turning channels of few elements takes less time than what else follows for each of their positions
  const bool turns_channels = !groups && !last && !masked && measured && g.positions > 1 && batch <= few_samples &&
                              g.positions < fewest_positions && g.count <= computed_in_double;
  const bool leaves = !measured && !backward && is_past_caches(2 * g.channels * g.count * size_of(dtype));
  const auto repeat_of = [&](int64_t rows, int64_t columns) -> int64_t {
    if (masked) return 1;
    const int64_t lines = leaves ? rows_of_lines(rows, columns, dtype) : 0;
    return lines ? lines : repeats_of(rows, columns, !measured && backward);
  };
  const bool rows = measured_groups && !last && !g.small;
  g.y_by_rows = rows && are_rows(g.positions, share, false);
  if (turns_channels) {
    walk_columns(g, batch, true, repeat_of);
    g.turned = true;
  } else if (g.small || runs || (rows && are_rows(g.positions, share, backward))) {
    walk_groups(g, batch, backward);
  } else if (last || g.positions < fewest_positions) {
    walk_columns(g, batch, last, repeat_of);
  } else {
    walk_planes(g, batch);
  }
  return g;
}

// The backward of planes keeps sums for each run of positions.
inline void divide_runs(ChannelsGeometry& g) {
  if (g.walk != Walk::planes) return;
  g.item_size = 4096;
  g.parts = ceil_divide(g.positions, g.item_size);
  g.sum_items = g.parts * (g.groups ? g.channels / g.groups : g.outer);
}

}  // namespace evenkeel
