// The interface between the operators on tables and their kernels; plain data, shared by every instruction set.
//
// Moments: a table is walked in streams, each one (rows, columns) with a row stride: a block of columns of a table
// stored by rows, or a single column of one stored by columns. A table of few columns is a stream of `fold` rows at a
// time, so that vectors are full whatever the number of columns. Sums are taken about a shift per column; pieces of a
// stream, that depend on its shape alone, are summed each by itself and then added in a fixed tree.
#pragma once

#include "core/types.h"

namespace evenkeel {

// What is summed for each column; a piece holds `sums_count` runs of (columns) doubles.
enum ColumnSum : int {
  sum_count, sum_first, sum_second, sum_minimum, sum_maximum, sum_missing, sum_infinite, sums_count
};

struct ColumnStream {
  DType type;
  const void* x;         // the first element
  const double* weight;  // (rows), or null
  const double* shift;   // (columns)
  int64_t rows, columns, row_stride, column_stride;
  int64_t fold;       // rows taken as one, or 1
  int64_t item_rows;  // a multiple of fold: rows summed before their sums are added up
};

// A map of elements of which neighbours have neighbouring parameters; parameters repeat with a period, and are there
// for 16 more elements than that.
struct ColumnMap {
  DType from, to;  // `to` is floating
  const double *shift, *scale, *offset;
  int64_t period;
  bool clip;
  double low, high;
  bool stream;  // past the caches
};

struct ColumnSumKernels {
  // sums of the rows [begin, end) of a stream
  void (*sum)(const ColumnStream&, int64_t begin, int64_t end, double* sums);
  // a shift for each column, near its values
  void (*find_shift)(const ColumnStream&, double* shift);
};

// y[i] = map of x[i] with the parameters of position (phase + i) % period; returns whether an x[i] is infinite
using ColumnMapKernel = bool (*)(const ColumnMap&, const void* x, void* y, int64_t n, int64_t phase);

EVENKEEL_VARIANTS(ColumnSumKernels, column_sum_kernels)
EVENKEEL_VARIANTS(ColumnMapKernel, column_map_kernel)

}  // namespace evenkeel
