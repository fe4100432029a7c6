// The interface between the channel operators and their kernels; plain data, shared by every instruction set.
//
// A dense tensor is walked in one of three ways. Planes: (outer, channels, positions) with long runs of positions, each
// run one channel's; a statistic covers a channel over the batch, or a group of consecutive channels of one sample.
// Columns: (outer, rows, width), where `per_channel` neighbouring columns are a channel, and a lane of the sums; a
// statistic covers `fold` neighbouring lanes of an outer index. This is channels-last, and contiguous with few
// positions, which are turned where a channel has few elements. Groups: of few positions; each group of a sample is a
// row, a statistic and an item, and a block is some samples. Where channels lie innermost, a group of many is a run of
// them at each position. Groups of few elements are turned, and treated side by side.
//
// A statistic is computed in items: fixed pieces of the data, that depend on its shape and dtype. An item's sums are
// merged in double in the order of the data, so that no bit depends on the threads.
#pragma once

#include <algorithm>

#include "core/types.h"

namespace evenkeel {

enum class Activation : int64_t { none, relu, silu };

// The options of the channel operators, in the order of their schemas.
struct ChannelsOptions {
  int64_t groups;  // of a sample; 0: one statistic per channel over the batch; each_channel: as many as the channels
  double eps;
  EpsMode eps_mode;
  double weight_offset;
  Activation activation;  // of y; the backward computes what it was applied to once more
};

constexpr int64_t each_channel = -1;

// The options with a number of groups; statistics that are given belong to channels.
inline ChannelsOptions resolved(ChannelsOptions options, int64_t channels, bool remembered) {
  if (remembered) options.groups = 0;
  if (options.groups == each_channel) options.groups = channels;
  return options;
}

// A dense tensor: contiguous (batch, channels, positions), or with the channels innermost.
struct ChannelsShape {
  int64_t batch, channels, positions;
  bool last;
};

// Numbers of a saved statistic: its mean, what that lost in rounding, 1/scale, what it lost [, its bend].
constexpr int64_t statistics_width(EpsMode mode) { return mode == EpsMode::inside ? 4 : 5; }

constexpr int64_t longest_strip = 512;  // columns at a time: their sums stay in the first-level cache

enum class Walk : int { planes, columns, groups };

struct ChannelsGeometry {
  Walk walk;
  int64_t outer, channels, positions;      // planes
  int64_t groups;                          // of a sample, planes; 0: one statistic per channel over the batch
  bool innermost;                          // groups: channels lie innermost, a run of them at each position
  bool small;                              // groups: of few elements, side by side
  bool y_by_rows;                          // groups: the forward is by rows, and y in double up to the activation
  bool turned;                             // columns: in memory channels lie outermost
  // Columns and groups. The columns of `repeat` rows are taken for one wide row where rows are narrower than vectors.
  int64_t rows, width, fold, per_channel, repeat;
  int64_t row_stride;  // columns: elements from a row to the next
  int64_t lanes_of_row, lanes_of_strip, strips;

  int64_t statistics, count;  // how many there are, and elements in each
  // A block is what one thread can do alone: a statistic (planes), an outer index (columns), some samples (groups).
  int64_t blocks, statistics_per_block;
  int64_t measure_items, sum_items;  // per block
  int64_t item_size;                 // elements of a statistic (planes), rows of a strip (columns)
  int64_t rows_written;              // columns: rows that are written together, whole; they are memory's order
  // items of a block in which y or dx is written, out of those that were summed
  int64_t write_items(int64_t items) const {
    return walk == Walk::columns ? (rows + rows_written - 1) / rows_written : items;
  }
  int64_t parts;                     // planes, backward: items per run of positions
  // lanes are what the sums of the backward are kept for: a channel of a sample, a block or wide row
  int64_t lanes() const {
    return walk == Walk::columns ? outer * lanes_of_row : (walk == Walk::planes ? outer : blocks) * channels;
  }
};

constexpr double smallest_normal = 0x1p-126;  // float
inline bool is_normal(double v) {
  const double size = v < 0 ? -v : v;
  return size >= smallest_normal && size < 0x1p128;
}

struct ChannelsCall {
  ChannelsGeometry geometry;
  DType dtype;  // of x, dy and out
  ChannelsOptions options;
  bool remembered;  // the statistics are the caller's: nothing flows back through them
  // (batch, positions): 1 where valid, or null if all are. Elsewhere y and dx are 0, and x may be anything. With a mask
  // a column is a channel and a row a position.
  const uint8_t* mask;
  const int64_t* valid;  // with a mask: valid positions of each sample (groups) or of all (a single number)
  const void* x;
  const void* dy;
  Values given_weight, given_bias;  // of the channels, as the caller has them
  // offset included, per channel (planes), lane (columns) or column (groups) of one outer index; null for 1 and 0
  const double* weight;
  const double* bias;
  double weight_of(int64_t i) const { return weight ? weight[i] : 1; }
  const double* weights_from(int64_t first) const { return weight ? weight + first : nullptr; }
  double smallest_weight, largest_weight;  // of |weight| where that is a normal float; 1 where none is
  double bias_of(int64_t i) const { return bias ? bias[i] : 0; }
  const double* biases_from(int64_t first) const { return bias ? bias + first : nullptr; }
  void* out;         // y or dx; null where dx is not needed
  // compute dtype, (statistics, width)
  void* statistics;
  void* variance;    // compute dtype, (statistics)
  bool may_cancel;   // remembered: in some channel y can be far smaller than the terms that it is the difference of
  bool streamed;     // out is larger than the caches: write past them
  bool fetched;      // what comes next is fetched meanwhile: of planes and groups the next statistic, of columns while y
                     // is written (dx's rows always are)
  int64_t together;  // planes: statistics of neighbouring channels that one thread takes together, and writes by samples
  int64_t rows_at_a_time;  // columns: of which the same few columns are written together
  // backward: room for a gradient of each element of the block, or null: planes' in the compute dtype, columns' in
  // double; of groups that are runs for those that are treated together, in the numbers in which they are computed
  void* kept;
  // Columns: the factors of each, in the compute dtype, for the blocks from first_block on. Groups: their sums, and
  // what else is stored of their columns. Planes: with remembered statistics, the factors of each channel.
  void* factors;
  int64_t first_block;
  bool is_first;  // whether it is that of the first block in these factors: what stays there is to be filled in
  double* partial;  // sums of the items from first_item on
  int64_t first_item;
  double *sums, *products;  // backward: of dy, and of dy * x_hat, for each lane
  double* means;            // backward: (statistics, 2), the means of g and g * x_hat
  int64_t statistics_width() const { return evenkeel::statistics_width(options.eps_mode); }
};

// Backward: remembered statistics need no sums for dx, which is written in the pass that sums.
inline bool writes_with_sums(const ChannelsCall& a) { return a.remembered && a.out; }

// Whether a channel's weight is divided by the scale before it multiplies, which has to be in float's range then: rows of
// groups do so only to tell what ReLU let through to a y of another walk.
inline bool has_scales(const ChannelsCall& a) {
  const ChannelsGeometry& g = a.geometry;
  const bool are_rows = g.walk == Walk::groups && !g.innermost && !g.small;
  return !are_rows || (a.options.activation == Activation::relu && !g.y_by_rows);
}

// Numbers of a channel's weight, as `weight` has them.
inline int64_t weights_of_channel(const ChannelsGeometry& g) { return g.walk == Walk::groups ? g.per_channel : 1; }

constexpr int64_t computed_in_double = 64;  // elements of a statistic whose gradient floats may not hold
// Of columns, elements of a statistic that is summed in double: a gradient may be far smaller than its terms, and show the
// roundings of the statistics. For more elements it would cost a forward a quarter.
constexpr int64_t measured_in_double = 32;
// Groups of few positions that are treated together: an addition or a division of one waits for no other's.
constexpr int64_t most_groups_together = 8;
inline int64_t groups_together(const ChannelsGeometry& g) {
  constexpr int64_t near = 4096;  // elements that stay in the nearest cache
  return std::clamp<int64_t>(near / g.count, 1, most_groups_together);
}
constexpr int64_t most_of_small = 96;   // elements of a group that is treated beside others
constexpr int64_t most_together = 256;  // statistics of planes that are written sample by sample

// A phase over [begin, end) of the items or statistics.
using ChannelsPhase = void (*)(const ChannelsCall&, int64_t begin, int64_t end);

struct ChannelsWalk {  // null where a walk has nothing to do
  ChannelsPhase prepare;         // statistics: remembered or saved ones
  ChannelsPhase measure;         // measure items
  ChannelsPhase merge;           // statistics
  ChannelsPhase write;           // write items
  ChannelsPhase sum;             // sum items
  ChannelsPhase merge_sums;      // statistics
  ChannelsPhase write_gradient;  // write items
};

struct ChannelsKernels {
  // the factors of each channel, and where they are asked for statistics, from means and variances; returns whether
  // terms may cancel in any
  bool (*remember)(const ChannelsCall&, const double* mean, const double* variance);
  ChannelsPhase repair;           // statistics: again in double, where float's range does not suffice
  ChannelsPhase repair_gradient;  // statistics
  // out[c] = the sums of channel c's lanes: of dy (which = 0) or dy * x_hat (1)
  void (*finish)(const ChannelsCall&, int which, int64_t channels, DType dtype, void* out);
  // out = source + offset, each element `each` times in a row, and the whole `times` times
  void (*widen)(const void* source, DType dtype, double offset, int64_t n, int64_t each, int64_t times, double* out);
  // the smallest and the largest size of those values that are normal floats; 0 where none is. Each is there `each` times in a
  // row, and a vector of them may be read past the end, of such or of zeros.
  void (*bound)(const double* values, int64_t n, int64_t each, double* smallest, double* largest);
  // running <- (1 - share) running + share * factor * statistic, rounded once; statistics of inputs of a dtype
  void (*move)(const Values& running, const void* statistics, int64_t stride, DType dtype, int64_t n, double share,
               double factor);
  // to (count, columns, rows) <- from (count, rows, columns), elements of `size` bytes
  void (*turn)(const void* from, void* to, int64_t size, int64_t count, int64_t rows, int64_t columns);
};

// doubles in an item's sums: a shift, the sums of differences from it and of their squares (of columns: for each lane, or
// at the first of those that share a statistic), and last the count of valid elements (in a column); or the two sums
inline int64_t strip_stride(const ChannelsGeometry& g) {
  return padded(std::min(g.lanes_of_row, g.lanes_of_strip));
}
inline int64_t measure_partial(const ChannelsGeometry& g) {
  return g.walk == Walk::columns ? 3 * strip_stride(g) + 1 : 4;
}
inline int64_t sum_partial(const ChannelsGeometry& g) { return g.walk == Walk::columns ? 2 * strip_stride(g) : 2; }
// of columns: a vector at the end of a row may reach past it
inline int64_t kept_stride(const ChannelsGeometry& g) { return g.width + 16; }
// the factors of `count` columns or lanes, in doubles' places
constexpr int64_t factors_size(int64_t count) { return 11 * padded(count); }
inline int64_t factors_of_block(const ChannelsGeometry& g) {
  return factors_size(g.width) + (g.per_channel > 1 ? factors_size(g.lanes_of_row) : 0);
}

EVENKEEL_VARIANTS(ChannelsWalk, planes_walk)
EVENKEEL_VARIANTS(ChannelsWalk, columns_walk)
EVENKEEL_VARIANTS(ChannelsWalk, groups_walk)
EVENKEEL_VARIANTS(ChannelsKernels, channels_kernels)

}  // namespace evenkeel
