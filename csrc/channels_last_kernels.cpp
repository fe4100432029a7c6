// The channel pattern over rows whose neighbouring columns are channels: channels-last, and contiguous tensors with
// few positions. Compiled once per instruction set.
//
// An item is a block of consecutive rows. Its sums are kept per column, in the arithmetic type for a few rows and in
// double beyond: of the differences from the first rows' mean and their squares, and where that was no fair guess once
// more about a better one, while the block is in cache. Rows that are not valid are left out.
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
  C mean[strip], mean_rest[strip], reciprocal[strip], scale[strip], bias[strip], mean_g[strip], slope[strip];
  C cancels[strip];  // 1 where terms may cancel
  bool any_cancels = false;

  ColumnStatistics(const ChannelsCall& a, int64_t outer, int64_t first, int64_t columns) {
    const ChannelsGeometry& g = a.geometry;
    const int64_t span = g.span(), block = outer * g.statistics_per_block;
    int64_t column = first % span, index = block + column / g.fold, left = g.fold - column % g.fold;
    ChannelStatistics<C> s = restore_statistics<C>(a, index);
    const C* weights = a.weight ? static_cast<const C*>(a.weight) + first : nullptr;
    const C* biases = a.bias ? static_cast<const C*>(a.bias) + first : nullptr;
    for (int64_t i = 0; i < columns; ++i, --left, ++column) {
      if (left == 0) {
        if (column == span) column = 0;
        index = column ? index + 1 : block;
        s = restore_statistics<C>(a, index);
        left = g.fold;
      }
      const C weight = weights ? weights[i] : 1;
      mean[i] = s.mean;
      mean_rest[i] = s.mean_rest;
      reciprocal[i] = s.reciprocal;
      scale[i] = scale_of(s, static_cast<double>(weight));
      bias[i] = biases ? biases[i] : 0;
      mean_g[i] = a.means ? static_cast<C>(a.means[index * 2]) : 0;
      slope[i] = a.means ? slope_of(s, a.means[index * 2 + 1]) : 0;
      cancels[i] = a.remembered && may_cancel(s, weight, bias[i]) ? 1 : 0;
      any_cancels = any_cancels || cancels[i] != 0;
    }
    const int64_t end = padded(columns);
    for (int64_t i = columns; i < end; ++i) {
      mean[i] = mean_rest[i] = reciprocal[i] = scale[i] = bias[i] = mean_g[i] = slope[i] = cancels[i] = 0;
    }
  }

  template <class At, class T>
  typename Lanes<C>::vector centred(const At& at, const T* x) const {
    const Whole<C> whole{at.i};
    return (at.load(x) - whole.load(mean)) - whole.load(mean_rest);
  }
  // the input of the activation
  template <class At>
  typename Lanes<C>::vector affine(const At& at, typename Lanes<C>::vector centred) const {
    const Whole<C> whole{at.i};
    return centred * whole.load(scale) + whole.load(bias);
  }
  // the same in double, where terms cancel
  template <class At, class T>
  typename Lanes<C>::vector exact_affine(const At& at, const T* x) const {
    const Whole<C> whole{at.i};
    Wide<C> v(at.load(x));
    const Wide<C> m(whole.load(mean)), rest(whole.load(mean_rest)), factor(whole.load(scale)), shift(whole.load(bias));
    for (int i = 0; i < Wide<C>::parts; ++i) {
      v.part[i] = ((v.part[i] - m.part[i]) - rest.part[i]) * factor.part[i] + shift.part[i];
    }
    return choose_lanes<C>(whole.load(cancels) != C(0), v.rounded(), affine(at, centred(at, x)));
  }
};

// Calls body(first column, columns) for each strip.
template <class Body>
void for_each_strip(int64_t width, const Body& body) {
  for (int64_t first = 0; first < width; first += strip) body(first, width - first < strip ? width - first : strip);
}

template <class T, bool extras>
void measure_one(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  using V = typename Lanes<C>::vector;
  const ChannelsGeometry& g = a.geometry;
  const Block block = block_of(g, g.measure_items, item);
  const ValidRows<extras> valid(a, block);
  const int64_t stride = padded(g.width), few_rows = valid.until(rows_per_flush);
  double* partial = a.partial + (item - a.first_item) * measure_partial(g);
  const double count = static_cast<double>(valid.count());
  const double few = count < rows_per_flush ? count : rows_per_flush;
  partial[3 * stride] = count;
  if (count == 0) return;
  ColumnSums<C, 1> sums;
  ColumnSums<C, 2> squares;
  C shift[strip];
  for_each_strip(g.width, [&](int64_t first, int64_t columns) {
    const T* x = static_cast<const T*>(a.x) + block.first_row * g.width + first;
    sums.over(few_rows, columns, [&](auto at, int64_t row, V(&out)[1]) {
      out[0] = valid.has(row) ? at.load(x + row * g.width) : V{};
    });
    std::memset(shift, 0, sizeof(shift));
    for (int64_t i = 0; i < columns; ++i) shift[i] = static_cast<C>(sums.total[0][i] / few);
    const auto pass = [&] {
      squares.over(block.count, columns, [&](auto at, int64_t row, V(&out)[2]) {
        out[0] = valid.has(row) ? at.load(x + row * g.width) - Whole<C>{at.i}.load(shift) : V{};
        out[1] = out[0] * out[0];
      });
    };
    pass();
    bool fair = true;
    for (int64_t i = 0; i < columns; ++i) {
      if (is_fair_shift(count, squares.total[0][i], squares.total[1][i])) continue;
      shift[i] = static_cast<C>(static_cast<double>(shift[i]) + squares.total[0][i] / count);
      fair = false;
    }
    if (!fair) pass();  // the other columns' sums come out as before
    for (int64_t i = 0; i < columns; ++i) {
      partial[first + i] = static_cast<double>(shift[i]);
      partial[stride + first + i] = squares.total[0][i];
      partial[2 * stride + first + i] = squares.total[1][i];
    }
  });
}

// Calls body(column) for the columns of a statistic.
template <class Body>
void for_each_column(const ChannelsGeometry& g, int64_t statistic, const Body& body) {
  const int64_t first = statistic % g.statistics_per_block * g.fold;
  for (int64_t start = first; start < g.width; start += g.span()) {
    for (int64_t i = start; i < start + g.fold; ++i) body(i);
  }
}

template <class T, bool>
void merge_one(const ChannelsCall& a, int64_t statistic) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = statistic / g.statistics_per_block, stride = padded(g.width);
  MergedSums merged;
  for (int64_t item = outer * g.measure_items; item < (outer + 1) * g.measure_items; ++item) {
    const double* partial = a.partial + (item - a.first_item) * measure_partial(g);
    for_each_column(g, statistic, [&](int64_t i) {
      merged.add(partial[3 * stride], partial[i], partial[stride + i], partial[2 * stride + i]);
    });
  }
  save_merged<typename Compute<T>::type>(a, statistic, merged);
}

template <class T, bool extras>
void write_one(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const Block block = block_of(g, g.measure_items, item);
  const ValidRows<extras> valid(a, block);
  for_each_strip(g.width, [&](int64_t first, int64_t columns) {
    const ColumnStatistics<C> s(a, block.outer, first, columns);
    for (int64_t row = 0; row < block.count; ++row) {
      const int64_t offset = (block.first_row + row) * g.width + first;
      const T* x = static_cast<const T*>(a.x) + offset;
      T* y = static_cast<T*>(a.out) + offset;
      if (!valid.has(row)) {
        std::memset(static_cast<void*>(y), 0, columns * sizeof(T));
        continue;
      }
      for_each_position<C>(columns, [&](auto at) {
        auto v = s.any_cancels ? s.exact_affine(at, x) : s.affine(at, s.centred(at, x));
        if constexpr (extras) v = activate<C>(v, a.activation);
        at.store(y, v);
      });
    }
  });
}

// The upstream gradient led through the activation.
template <class T, bool extras, class At>
inline typename Lanes<typename Compute<T>::type>::vector upstream_at(
    const ChannelsCall& a, const At& at, const T* dy, const ColumnStatistics<typename Compute<T>::type>& s,
    typename Lanes<typename Compute<T>::type>::vector centred) {
  const auto upstream = at.load(dy);
  if (!extras || a.activation == Activation::none) return upstream;
  const Whole<typename Compute<T>::type> whole{at.i};
  return through_activation_of<typename Compute<T>::type>(upstream, centred, whole.load(s.scale), whole.load(s.bias),
                                                          a.activation, has_few_elements(a.geometry, a.remembered));
}

// In double: terms of both signs cancel, and memory is the bound all the same.
template <class T, bool extras>
void sum_one(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const Block block = block_of(g, g.sum_items, item);
  const ValidRows<extras> valid(a, block);
  const int64_t stride = padded(g.width);
  double* partial = a.partial + (item - a.first_item) * 2 * stride;
  for_each_strip(g.width, [&](int64_t first, int64_t columns) {
    const ColumnStatistics<C> s(a, block.outer, first, columns);
    double *gradient = partial + first, *product = partial + stride + first;
    const int64_t offset = block.first_row * g.width + first;
    const T *x = static_cast<const T*>(a.x) + offset, *dy = static_cast<const T*>(a.dy) + offset;
    for_each_position<C>(columns, [&](auto at) {
      constexpr int parts = Wide<C>::parts;
      Doubles sums[parts] = {}, products[parts] = {};
      for (int64_t row = 0; row < block.count; ++row) {
        if (!valid.has(row)) continue;
        const auto centred = s.centred(at, x + row * g.width);
        const Wide<C> upstream(upstream_at<T, extras>(a, at, dy + row * g.width, s, centred)), difference(centred);
        for (int i = 0; i < parts; ++i) {
          sums[i] += upstream.part[i];
          products[i] += upstream.part[i] * difference.part[i];
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

template <class T, bool>
void merge_sums_one(const ChannelsCall& a, int64_t statistic) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = statistic / g.statistics_per_block, stride = padded(g.width);
  const C* weight = static_cast<const C*>(a.weight);
  const double reciprocal = static_cast<double>(restore_statistics<C>(a, statistic).reciprocal);
  double mean_g = 0, mean_gx = 0;
  for_each_column(g, statistic, [&](int64_t i) {
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
  });
  const double n = count_of(a, statistic);
  a.means[statistic * 2] = mean_g / n;
  a.means[statistic * 2 + 1] = mean_gx / n;
}

// dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale with g = dy * weight
template <class T, bool extras>
void write_gradient_one(const ChannelsCall& a, int64_t item) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const Block block = block_of(g, g.sum_items, item);
  const ValidRows<extras> valid(a, block);
  for_each_strip(g.width, [&](int64_t first, int64_t columns) {
    const ColumnStatistics<C> s(a, block.outer, first, columns);
    const C* weight = a.weight ? static_cast<const C*>(a.weight) + first : nullptr;
    const bool exactly = has_few_elements(g, a.remembered);
    for (int64_t row = 0; row < block.count; ++row) {
      const int64_t offset = (block.first_row + row) * g.width + first;
      const T *x = static_cast<const T*>(a.x) + offset, *dy = static_cast<const T*>(a.dy) + offset;
      T* dx = static_cast<T*>(a.out) + offset;
      if (!valid.has(row)) {
        std::memset(static_cast<void*>(dx), 0, columns * sizeof(T));
        continue;
      }
      for_each_position<C>(columns, [&](auto at) {
        const Whole<C> whole{at.i};
        const auto centred = s.centred(at, x);
        const auto upstream = upstream_at<T, extras>(a, at, dy, s, centred);
        if (a.remembered) {
          at.store(dx, upstream * whole.load(s.scale));
          return;
        }
        const auto weights = weight ? at.load(weight) : decltype(upstream){} + C(1);
        at.store(dx, project<C>(upstream, centred, weights, whole.load(s.mean_g), whole.load(s.slope),
                                whole.load(s.reciprocal), exactly));
      });
    }
  });
}

}  // namespace
}  // namespace EVENKEEL_ISA
}  // namespace evenkeel

EVENKEEL_CHANNELS_WALK(channels_last_kernels_)
