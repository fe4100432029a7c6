// The channel pattern over rows whose neighbouring columns are channels: channels-last, and contiguous tensors with
// few positions. Compiled once per instruction set.
//
// An item is a block of consecutive rows. Its sums are kept per column, in the arithmetic type for a few rows and in
// double beyond, first for the means and then, while the block is in cache, for the differences from them.
#include "channels_common.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

constexpr int64_t strip = 512;         // columns at a time: their sums stay in the first-level cache
constexpr int64_t rows_per_flush = 16;  // sums in the arithmetic type stay short

struct Block {
  int64_t outer, begin, end, count;  // rows of an outer index
  int64_t first_row;                 // of the tensor
};

Block block_of(const ChannelsGeometry& g, int64_t items, int64_t item) {
  const int64_t outer = item / items, begin = item % items * g.item_size, stop = begin + g.item_size;
  const int64_t end = stop < g.rows ? stop : g.rows;
  return {outer, begin, end, end - begin, outer * g.rows + begin};
}

// Sums of K terms for each of up to `strip` columns.
template <class C, int K>
struct ColumnSums {
  double total[K][strip];

  // term(position, row, out) gives K vectors; the sums of lanes past the last column are not used
  template <class Term>
  void over(int64_t rows, int64_t columns, const Term& term) {
    constexpr int64_t width = Lanes<C>::width, tile = 4;
    for (int k = 0; k < K; ++k) std::memset(total[k], 0, padded(columns) * sizeof(double));
    int64_t i = 0;
    for (; i + tile * width <= columns; i += tile * width) {
      add<tile>(rows, i, term, [&](int t) { return Whole<C>{i + t * width}; });
    }
    for (; i + width <= columns; i += width) add<1>(rows, i, term, [&](int) { return Whole<C>{i}; });
    const int rest = static_cast<int>(columns - i);
    if (rest) add<1>(rows, i, term, [&](int) { return Rest<C>{i, rest}; });
  }

 private:
  // All rows of a few vectors of columns, whose sums stay in registers.
  template <int tile, class Term, class At>
  void add(int64_t rows, int64_t column, const Term& term, const At& at) {
    using V = typename Lanes<C>::vector;
    for (int64_t begin = 0; begin < rows; begin += rows_per_flush) {
      const int64_t end = begin + rows_per_flush < rows ? begin + rows_per_flush : rows;
      V part[K][tile] = {};
      for (int64_t row = begin; row < end; ++row) {
        for (int t = 0; t < tile; ++t) {
          V out[K];
          term(at(t), row, out);
          for (int k = 0; k < K; ++k) part[k][t] += out[k];
        }
      }
      for (int k = 0; k < K; ++k) {
        for (int t = 0; t < tile; ++t) add_lanes<C>(part[k][t], total[k] + column + t * Lanes<C>::width);
      }
    }
  }
};

// The statistics of neighbouring columns, one value for each.
template <class C>
struct ColumnStatistics {
  C mean[strip], mean_rest[strip], reciprocal[strip], scale[strip], mean_g[strip], slope[strip];

  ColumnStatistics(const ChannelsCall& a, int64_t outer, int64_t first, int64_t columns) {
    const ChannelsGeometry& g = a.geometry;
    int64_t index = outer * g.statistics_per_block + first / g.fold, left = g.fold - first % g.fold;
    ChannelStatistics<C> s = restore_statistics<C>(a, index);
    const C* weight = a.weight ? static_cast<const C*>(a.weight) + first : nullptr;
    for (int64_t i = 0; i < columns; ++i, --left) {
      if (left == 0) {
        s = restore_statistics<C>(a, ++index);
        left = g.fold;
      }
      mean[i] = s.mean;
      mean_rest[i] = s.mean_rest;
      reciprocal[i] = s.reciprocal;
      scale[i] = weight ? scale_of(s, static_cast<double>(weight[i])) : s.reciprocal;
      mean_g[i] = a.means ? static_cast<C>(a.means[index * 2]) : 0;
      slope[i] = a.means ? slope_of(s, a.means[index * 2 + 1]) : 0;
    }
    const int64_t end = padded(columns);
    for (int64_t i = columns; i < end; ++i) {
      mean[i] = mean_rest[i] = reciprocal[i] = scale[i] = mean_g[i] = slope[i] = 0;
    }
  }

  template <class At, class T>
  typename Lanes<C>::vector centred(const At& at, const T* x) const {
    const Whole<C> whole{at.i};
    return (at.load(x) - whole.load(mean)) - whole.load(mean_rest);
  }
};

// Calls body(first column, columns) for each strip.
template <class Body>
void for_each_strip(int64_t width, const Body& body) {
  for (int64_t first = 0; first < width; first += strip) body(first, width - first < strip ? width - first : strip);
}

template <class T>
void measure_item(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  using V = typename Lanes<C>::vector;
  const ChannelsGeometry& g = a.geometry;
  const Block block = block_of(g, g.measure_items, item);
  const int64_t stride = padded(g.width);
  double* partial = a.partial + (item - a.first_item) * 3 * stride;
  ColumnSums<C, 1> sums;
  ColumnSums<C, 2> squares;
  C shift[strip];
  for_each_strip(g.width, [&](int64_t first, int64_t columns) {
    const T* x = static_cast<const T*>(a.x) + block.first_row * g.width + first;
    std::memset(shift, 0, sizeof(shift));
    for_each_position<C>(columns, [&](auto at) { Whole<C>{at.i}.store(shift, at.load(x)); });
    sums.over(block.count, columns, [&](auto at, int64_t row, V(&out)[1]) {
      out[0] = at.load(x + row * g.width) - Whole<C>{at.i}.load(shift);
    });
    const double count = static_cast<double>(block.count);
    for (int64_t i = 0; i < columns; ++i) {
      shift[i] = static_cast<C>(static_cast<double>(shift[i]) + sums.total[0][i] / count);
    }
    squares.over(block.count, columns, [&](auto at, int64_t row, V(&out)[2]) {
      out[0] = at.load(x + row * g.width) - Whole<C>{at.i}.load(shift);
      out[1] = out[0] * out[0];
    });
    for (int64_t i = 0; i < columns; ++i) {
      partial[first + i] = static_cast<double>(shift[i]);
      partial[stride + first + i] = squares.total[0][i];
      partial[2 * stride + first + i] = squares.total[1][i];
    }
  });
}

template <class C>
void merge_statistic(const ChannelsCall& a, int64_t statistic) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = statistic / g.statistics_per_block, stride = padded(g.width);
  const int64_t first = statistic % g.statistics_per_block * g.fold;
  MergedSums merged;
  for (int64_t item = outer * g.measure_items; item < (outer + 1) * g.measure_items; ++item) {
    const double* partial = a.partial + (item - a.first_item) * 3 * stride;
    const double count = static_cast<double>(block_of(g, g.measure_items, item).count);
    for (int64_t i = first; i < first + g.fold; ++i) {
      merged.add(count, partial[i], partial[stride + i], partial[2 * stride + i]);
    }
  }
  save_merged<C>(a, statistic, merged);
}

template <class T>
void write_item(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const Block block = block_of(g, g.measure_items, item);
  for_each_strip(g.width, [&](int64_t first, int64_t columns) {
    const ColumnStatistics<C> s(a, block.outer, first, columns);
    const C* bias = a.bias ? static_cast<const C*>(a.bias) + first : nullptr;
    for (int64_t row = 0; row < block.count; ++row) {
      const int64_t offset = (block.first_row + row) * g.width + first;
      const T* x = static_cast<const T*>(a.x) + offset;
      T* y = static_cast<T*>(a.out) + offset;
      for_each_position<C>(columns, [&](auto at) {
        auto v = s.centred(at, x) * Whole<C>{at.i}.load(s.scale);
        if (bias) v += at.load(bias);
        at.store(y, v);
      });
    }
  });
}

// In double: terms of both signs cancel, and memory is the bound all the same.
template <class T>
void sum_item(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const Block block = block_of(g, g.sum_items, item);
  const int64_t stride = padded(g.width);
  double* partial = a.partial + (item - a.first_item) * 2 * stride;
  for_each_strip(g.width, [&](int64_t first, int64_t columns) {
    const ColumnStatistics<C> s(a, block.outer, first, columns);
    double *gradient = partial + first, *product = partial + stride + first;
    const int64_t offset = block.first_row * g.width + first;
    const T *x = static_cast<const T*>(a.x) + offset, *dy = static_cast<const T*>(a.dy) + offset;
    for_each_position<C>(columns, [&](auto at) {
      const Whole<C> whole{at.i};
      const Wide<C> mean(whole.load(s.mean)), rest(whole.load(s.mean_rest));
      constexpr int parts = Wide<C>::parts;
      Doubles sums[parts] = {}, products[parts] = {};
      for (int64_t row = 0; row < block.count; ++row) {
        const Wide<C> upstream(at.load(dy + row * g.width)), value(at.load(x + row * g.width));
        for (int i = 0; i < parts; ++i) {
          sums[i] += upstream.part[i];
          products[i] += upstream.part[i] * ((value.part[i] - mean.part[i]) - rest.part[i]);
        }
      }
      for (int i = 0; i < parts; ++i) {
        const Whole<double> lanes{at.i + i * Lanes<double>::width};
        lanes.store(gradient, sums[i]);
        lanes.store(product, products[i]);
      }
    });
  });
}

template <class C>
void merge_sums_of(const ChannelsCall& a, int64_t statistic) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = statistic / g.statistics_per_block, stride = padded(g.width);
  const int64_t first = statistic % g.statistics_per_block * g.fold;
  const C* weight = static_cast<const C*>(a.weight);
  const double reciprocal = static_cast<double>(restore_statistics<C>(a, statistic).reciprocal);
  double mean_g = 0, mean_gx = 0;
  for (int64_t i = first; i < first + g.fold; ++i) {
    double* sums = a.sums + (outer * g.width + i) * 2;
    sums[0] = sums[1] = 0;
    for (int64_t item = outer * g.sum_items; item < (outer + 1) * g.sum_items; ++item) {
      const double* partial = a.partial + (item - a.first_item) * 2 * stride;
      sums[0] += partial[i];
      sums[1] += partial[stride + i];
    }
    sums[1] *= reciprocal;
    const double w = weight ? static_cast<double>(weight[i]) : 1;
    mean_g += w * sums[0];
    mean_gx += w * sums[1];
  }
  const double n = static_cast<double>(g.count);
  a.means[statistic * 2] = mean_g / n;
  a.means[statistic * 2 + 1] = mean_gx / n;
}

// dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale with g = dy * weight
template <class T>
void write_gradient_item(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const Block block = block_of(g, g.sum_items, item);
  for_each_strip(g.width, [&](int64_t first, int64_t columns) {
    const ColumnStatistics<C> s(a, block.outer, first, columns);
    const C* weight = a.weight ? static_cast<const C*>(a.weight) + first : nullptr;
    for (int64_t row = 0; row < block.count; ++row) {
      const int64_t offset = (block.first_row + row) * g.width + first;
      const T *x = static_cast<const T*>(a.x) + offset, *dy = static_cast<const T*>(a.dy) + offset;
      T* dx = static_cast<T*>(a.out) + offset;
      for_each_position<C>(columns, [&](auto at) {
        const Whole<C> whole{at.i};
        auto v = at.load(dy);
        if (a.remembered) {
          at.store(dx, v * whole.load(s.scale));
          return;
        }
        if (weight) v *= at.load(weight);
        v = (v - whole.load(s.mean_g)) - s.centred(at, x) * whole.load(s.slope);
        at.store(dx, v * whole.load(s.reciprocal));
      });
    }
  });
}

void measure(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) { for (int64_t i = begin; i < end; ++i) measure_item<decltype(t)>(a, i); });
}

void merge(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) {
    for (int64_t i = begin; i < end; ++i) merge_statistic<typename Compute<decltype(t)>::type>(a, i);
  });
}

void write(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) { for (int64_t i = begin; i < end; ++i) write_item<decltype(t)>(a, i); });
}

void sum(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) { for (int64_t i = begin; i < end; ++i) sum_item<decltype(t)>(a, i); });
}

void merge_sums(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) {
    for (int64_t i = begin; i < end; ++i) merge_sums_of<typename Compute<decltype(t)>::type>(a, i);
  });
}

void write_gradient(const ChannelsCall& a, int64_t begin, int64_t end) {
  by_dtype(a.dtype, [&](auto t) { for (int64_t i = begin; i < end; ++i) write_gradient_item<decltype(t)>(a, i); });
}

}  // namespace
}  // namespace EVENKEEL_ISA

extern const ChannelsWalk EVENKEEL_JOIN(channels_last_kernels_, EVENKEEL_ISA);
const ChannelsWalk EVENKEEL_JOIN(channels_last_kernels_, EVENKEEL_ISA) = {
    EVENKEEL_ISA::measure, EVENKEEL_ISA::merge,      EVENKEEL_ISA::write,
    EVENKEEL_ISA::sum,     EVENKEEL_ISA::merge_sums, EVENKEEL_ISA::write_gradient};

}  // namespace evenkeel
