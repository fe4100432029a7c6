// How the channel operators divide a tensor, by its shape alone.
#pragma once

#include <algorithm>
#include <numeric>

#include "channels_kernels.h"
#include "runtime.h"

namespace evenkeel {

inline int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many rows of a few columns are treated as one: enough to fill vectors, of the divisors of the rows.
inline int64_t repeats_of(int64_t rows, int64_t columns) {
  constexpr int64_t lanes = 16, many_columns = 64;
  if (columns >= many_columns) return 1;
  int64_t repeat = lanes / std::gcd(lanes, columns);
  while (rows % repeat) repeat /= 2;
  return repeat;
}

// Contiguous groups of few positions are rows of their own: short runs, of a channel each, would take longer. Forward,
// where the runs need no sums, that is so for fewer; a group of one channel where all of it is computed in double.
inline bool are_rows(int64_t positions, int64_t share, bool backward) {
  constexpr int64_t single = 64, forth = 31, back = 99;
  return positions <= (share == 1 ? single : backward ? back : forth);
}

// measured: from this input; given statistics may be applied in any order
inline ChannelsGeometry geometry_of(const Tensor& x, bool last, int64_t groups, bool masked, bool measured,
                                    bool backward) {
  // With fewer positions than this, neighbouring channels are treated together as columns.
  constexpr int64_t few_positions = 16, few_batch_positions = 64, many_samples = 32, item = 4096;
  const auto sizes = x.sizes();
  STD_TORCH_CHECK(sizes.size() >= 2, "evenkeel: expected (batch, channels, ...)");
  STD_TORCH_CHECK(groups >= 0 && (groups == 0 || sizes[1] % groups == 0), "evenkeel: groups must divide the channels");
  ChannelsGeometry g{};
  const int64_t batch = sizes[0], channels = sizes[1];
  int64_t positions = 1;
  for (size_t axis = 2; axis < sizes.size(); ++axis) positions *= sizes[axis];
  g.channels = channels;
  g.groups = groups;
  g.positions = positions;
  const int64_t share = groups ? channels / groups : 1;
  g.statistics = groups ? batch * groups : channels;
  g.count = groups ? share * positions : batch * positions;
  const int64_t fewest_positions = masked ? 2 : groups || batch < many_samples ? few_positions : few_batch_positions;
  g.per_channel = g.repeat = 1;
  if (groups && !last && !masked && measured && are_rows(positions, share, backward)) {
    constexpr int64_t most_samples = 16, many_blocks = 8;
    const int64_t samples = std::clamp<int64_t>(batch / many_blocks, 1, most_samples);
    g.walk = Walk::groups;
    g.per_channel = positions;
    g.width = channels * positions;
    g.outer = batch;
    g.blocks = ceil_divide(batch, samples);
    g.statistics_per_block = g.measure_items = g.sum_items = samples * groups;
  } else if (last || positions < fewest_positions) {
    g.walk = Walk::columns;
    g.per_channel = last ? 1 : positions;
    g.fold = share * g.per_channel;
    g.outer = groups ? batch : 1;
    g.rows = (groups ? 1 : batch) * (last ? positions : 1);
    g.repeat = masked ? 1 : repeats_of(g.rows, channels * g.per_channel);
    g.rows /= g.repeat;
    g.width = channels * g.per_channel * g.repeat;
    g.blocks = g.outer;
    g.statistics_per_block = groups ? groups : channels;
    constexpr int64_t fewest_rows = 32, many_items = 16, block = 65536;
    // a single block is shared among all threads
    const int64_t most_rows = groups ? g.rows : ceil_divide(g.rows, many_items);
    g.item_size = std::max(fewest_rows, std::min(most_rows, block / std::clamp<int64_t>(g.width, 1, strip)));
    g.rows_written = std::max<int64_t>(1, std::min(most_rows, block / std::max<int64_t>(g.width, 1)));
    g.measure_items = g.sum_items = ceil_divide(g.rows, g.item_size) * g.strips();
  } else {
    g.outer = batch;
    g.blocks = g.statistics;
    g.statistics_per_block = 1;
    g.item_size = positions < item ? item / positions * positions : item;
    g.measure_items = ceil_divide(g.count, g.item_size);
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
