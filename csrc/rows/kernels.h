// The interface between the row operators and their kernels; plain data, shared by every instruction set.
#pragma once

#include "core/types.h"

namespace evenkeel {

// Where the rows of a strided tensor start: the leading sizes and strides, in elements, outermost first.
struct RowLayout {
  static constexpr int max_axes = 8;
  int axes;
  int64_t sizes[max_axes];
  int64_t strides[max_axes];
};

// Merges the leading axes that are laid out as one; false where the rows need a copy. `axes` are those of a row.
inline bool lay_out(const int64_t* sizes, const int64_t* strides, int64_t ndim, int64_t axes, RowLayout& layout) {
  int64_t expected = 1;
  for (int64_t axis = ndim - 1; axis >= ndim - axes; --axis) {
    if (sizes[axis] != 1 && strides[axis] != expected) return false;
    expected *= sizes[axis];
  }
  layout.axes = 0;
  for (int64_t axis = 0; axis < ndim - axes; ++axis) {
    if (sizes[axis] == 1) continue;
    const int last = layout.axes - 1;
    if (last >= 0 && layout.strides[last] == strides[axis] * sizes[axis]) {
      layout.sizes[last] *= sizes[axis];
      layout.strides[last] = strides[axis];
    } else {
      if (layout.axes == RowLayout::max_axes) return false;
      layout.sizes[layout.axes] = sizes[axis];
      layout.strides[layout.axes++] = strides[axis];
    }
  }
  return true;
}

// What a row is divided by: the root of its mean square, of its variance (the mean is subtracted too), its length.
enum class Statistic : int64_t { rms, moments, l2 };

// The options of the row operators, in the order of their schemas.
struct RowsOptions {
  Statistic statistic;
  double eps;
  EpsMode eps_mode;
  double weight_offset;
  bool early;    // root mean square alone: rounded to x's dtype before the weight, and summed as torch sums
  bool rounded;  // with a residual: the sum is normalized as rounded to residual's dtype
};

struct RowsSpec {
  RowsOptions options;
  int64_t rows, features;
  bool center() const { return options.statistic == Statistic::moments; }
  // what sums of squares are divided by
  double count() const { return options.statistic == Statistic::l2 ? 1.0 : static_cast<double>(features); }
  // statistics of a row: [mean, what the mean lost in rounding,] 1/scale [, slope of the scale where eps bends it]
  int statistics_width() const { return (center() ? 2 : 0) + 1 + (options.eps_mode == EpsMode::inside ? 0 : 1); }
};

// Rows of a tensor whose last axes are dense, or none.
struct Rows {
  void* data = nullptr;
  DType dtype = DType::float32;
  RowLayout layout = {};
};

// weight and bias are in the compute dtype (double for float64, else float), offset included, or null.
struct RowsForward {
  RowsSpec spec;
  bool is_double;
  Rows x;
  Rows residual;  // added to x first, where it is there
  Rows sum;       // x + residual, in residual's dtype
  const void* weight;
  const void* bias;
  Rows y;
  bool streamed;  // what is read and written is larger than the caches
  bool fetched;   // they are larger than the second-level cache, and rows are fetched before they are needed
  int64_t group_bytes;  // of rows that the first-level cache keeps from their statistics until they are written
  void* statistics;  // compute dtype, (rows, statistics_width), or null
};

// Sums over rows follow a fixed tree: tasks of rows_per_task consecutive rows, then the tasks in order.
struct RowsBackward {
  RowsSpec spec;
  bool is_double;
  bool from_output;  // x is what the forward returned
  Rows dy;
  Rows x;
  Rows residual;   // what was normalized is x + residual, where it is there
  Rows dsum;       // is added to the gradient, where it is there
  Rows dx;         // contiguous, or nothing
  bool streamed;   // what is read and written is larger than the caches
  bool fetched;   // they are larger than the second-level cache, and rows are fetched before they are needed
  int64_t group_bytes;  // of rows that the first-level cache keeps from their sums until they are written
  Rows dresidual;  // dx in another dtype, or nothing
  const void* weight;
  const void* bias;  // for from_output alone
  const void* statistics;
  int64_t rows_per_task;
  int64_t padded_features;       // row length of the partial sums, a multiple of 16
  double* dweight_partial;       // (tasks, padded_features), or null
  double* dbias_partial;
};

// Whether rows are read and written as they lie: all of one dtype, and no sum or output to find x from.
inline bool is_plain(const RowsBackward& a) {
  const auto as_x = [&](const Rows& rows) { return !rows.data || rows.dtype == a.x.dtype; };
  return !a.from_output && !a.residual.data && !a.dresidual.data && as_x(a.dy) && as_x(a.dx) && as_x(a.dsum);
}

// Of so few rows and so many features the backward goes through blocks of features; a task sums its rows in one go.
constexpr int64_t most_few_rows = 64, fewest_long_features = 4096, features_of_block = 512;

struct RowsKernels {
  // begin and end are rows (forward), tasks (backward), features (finish)
  void (*forward)(const RowsForward&, int64_t begin, int64_t end);
  void (*backward)(const RowsBackward&, int64_t begin, int64_t end);
  // Of a few long rows: the slopes of rows, 16 bytes each; false where it takes the task. Then dx and the parameters'
  // gradients of blocks of features.
  bool (*few_slopes)(const RowsBackward&, void* slopes, int64_t begin, int64_t end);
  void (*few_blocks)(const RowsBackward&, void* slopes, const Values& dweight, const Values& dbias, int64_t begin,
                     int64_t end);
  // out[i] = sum over tasks of partial[task][i], rounded to dtype
  void (*finish)(const double* partial, int64_t tasks, int64_t padded_features, int64_t begin, int64_t end,
                 DType dtype, void* out);
  // out[i] = source[i] + offset in the compute dtype
  void (*widen)(const void* source, DType dtype, double offset, int64_t n, bool to_double, void* out);
};

EVENKEEL_VARIANTS(RowsKernels, rows_kernels)

}  // namespace evenkeel
