// The channel pattern over rows whose neighbouring columns are channels: channels-last, and contiguous tensors with
// few positions. Compiled once per instruction set.
//
// An item is a block of consecutive rows. Its sums are kept per column, in the arithmetic type for a few rows and in
// double beyond: of the differences from the first rows' mean and their squares, and where that was no fair guess once
// more about a better one, while the block is in cache. Rows that are not valid are left out.
#include "channels_columns.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

constexpr int64_t rows_per_flush = 16;  // sums in the arithmetic type stay short

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
template <class T, bool extras>
class Upstream {
 public:
  using C = typename Compute<T>::type;
  using V = typename Lanes<C>::vector;
  Upstream(const ChannelsCall& a, const Block& block, const ColumnStatistics<C>& s)
      : statistics_(s),
        activation_(a.activation),
        exactly_(extras && (has_few_elements(a, block.outer * a.geometry.statistics_per_block) || s.any_cancels)) {}
  bool exactly() const { return exactly_; }
  template <class At>
  V at(const At& at, const T* dy, const T* x) const {
    if constexpr (extras) {
      if (exactly_ && activation_ != Activation::none) return wide(at, dy, x).rounded();
      const V input = statistics_.affine(at, statistics_.centred(at, x));
      return through_activation<C>(at.load(dy), input, activation_);
    }
    return at.load(dy);
  }
  template <class At>
  Wide<C> wide(const At& at, const T* dy, const T* x) const {
    if constexpr (extras) {
      if (!exactly_) return Wide<C>(this->at(at, dy, x));
      Wide<C> upstream(at.load(dy));
      const Wide<C> input = statistics_.wide_affine(at, statistics_.wide_centred(at, x));
      for (int i = 0; i < Wide<C>::parts; ++i) {
        upstream.part[i] = through_activation<double>(upstream.part[i], input.part[i], activation_);
      }
      return upstream;
    }
    return Wide<C>(at.load(dy));
  }

 private:
  const ColumnStatistics<C>& statistics_;
  const Activation activation_;
  const bool exactly_;
};

// In double: terms of both signs cancel, and memory is the bound all the same. Whole lines of several columns at a
// time, since memory is read row by row; and few rows at a time, so that sums stay short.
template <int tile, class T, bool extras, class At>
void sum_columns(const ColumnStatistics<typename Compute<T>::type>& s, const Upstream<T, extras>& upstream,
                 const ValidRows<extras>& valid, const T* x, const T* dy, int64_t rows, int64_t width,
                 const At& at_tile, double* gradient, double* product) {
  using C = typename Compute<T>::type;
  constexpr int parts = Wide<C>::parts;
  constexpr int64_t rows_at_a_time = 64;
  Doubles totals[tile][parts] = {}, product_totals[tile][parts] = {};
  for (int64_t begin = 0; begin < rows; begin += rows_at_a_time) {
    const int64_t end = begin + rows_at_a_time < rows ? begin + rows_at_a_time : rows;
    Doubles sums[tile][parts] = {}, products[tile][parts] = {};
    for (int64_t row = begin; row < end; ++row) {
      if (!valid.has(row)) continue;
      for (int t = 0; t < tile; ++t) {
        const auto at = at_tile(t);
        const T *own_x = x + row * width, *own_dy = dy + row * width;
        const Wide<C> wide = upstream.wide(at, own_dy, own_x), difference = s.wide_centred(at, own_x);
        for (int i = 0; i < parts; ++i) {
          sums[t][i] += wide.part[i];
          products[t][i] += wide.part[i] * difference.part[i];
        }
      }
    }
    for (int t = 0; t < tile; ++t) {
      for (int i = 0; i < parts; ++i) {
        totals[t][i] += sums[t][i];
        product_totals[t][i] += products[t][i];
      }
    }
  }
  for (int t = 0; t < tile; ++t) {
    for (int i = 0; i < parts; ++i) {
      const Whole<double> lanes{at_tile(t).i + i * Lanes<double>::width};
      lanes.store(gradient, totals[t][i]);
      lanes.store(product, product_totals[t][i]);
    }
  }
}

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
    const Upstream<T, extras> upstream(a, block, s);
    const int64_t offset = block.first_row * g.width + first;
    const T *x = static_cast<const T*>(a.x) + offset, *dy = static_cast<const T*>(a.dy) + offset;
    const auto over = [&](auto tile, const auto& at_tile) {
      sum_columns<decltype(tile)::value, T, extras>(s, upstream, valid, x, dy, block.count, g.width, at_tile,
                                                    partial + first, partial + stride + first);
    };
    constexpr int64_t width = Lanes<C>::width;
    constexpr int tile = extras ? 1 : 4;
    int64_t i = 0;
    for (; i + tile * width <= columns; i += tile * width) {
      over(std::integral_constant<int, tile>{}, [i](int t) { return Whole<C>{i + t * width}; });
    }
    for (; i + width <= columns; i += width) over(std::integral_constant<int, 1>{}, [i](int) { return Whole<C>{i}; });
    const int rest = static_cast<int>(columns - i);
    if (rest) over(std::integral_constant<int, 1>{}, [i, rest](int) { return Rest<C>{i, rest}; });
  });
}

template <class T, bool>
void merge_sums_one(const ChannelsCall& a, int64_t statistic) {
  using C = typename Compute<T>::type;
  const ChannelsGeometry& g = a.geometry;
  const int64_t outer = statistic / g.statistics_per_block, stride = padded(g.width);
  const C* weight = static_cast<const C*>(a.weight);
  const double reciprocal = restore_statistics<C>(a, statistic).exact_reciprocal();
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

// The gradient of a measured statistic in double.
template <class T, bool extras, class At>
inline typename Lanes<typename Compute<T>::type>::vector exact_gradient(
    const ColumnStatistics<typename Compute<T>::type>& s, const Upstream<T, extras>& upstream, const At& at,
    const T* dy, const T* x) {
  using C = typename Compute<T>::type;
  const Wide<C> centred = s.wide_centred(at, x), weight(Whole<C>{at.i}.load(s.weight));
  Wide<C> v = upstream.wide(at, dy, x);
  for (int i = 0; i < Wide<C>::parts; ++i) {
    const auto of = [&](const double* values) { return s.doubles(values, at.i, i); };
    v.part[i] = ((v.part[i] * weight.part[i] - of(s.exact_mean_g)) - centred.part[i] * of(s.exact_slope)) *
                of(s.exact_reciprocal);
  }
  return v.rounded();
}

// All rows of a few columns, whose parameters stay in registers: for rows so narrow that this reads whole rows.
template <class T>
void write_gradient_columns(const ColumnStatistics<typename Compute<T>::type>& s, int64_t column, const T* x,
                            const T* dy, T* dx, int64_t rows, int64_t width) {
  using C = typename Compute<T>::type;
  using V = typename Lanes<C>::vector;
  constexpr int tile = 4;
  V mean[tile], rest[tile], weight[tile], mean_g[tile], slope[tile], reciprocal[tile];
  for (int t = 0; t < tile; ++t) {
    const Whole<C> at{column + t * Lanes<C>::width};
    mean[t] = at.load(s.mean);
    rest[t] = at.load(s.mean_rest);
    weight[t] = at.load(s.weight);
    mean_g[t] = at.load(s.mean_g);
    slope[t] = at.load(s.slope);
    reciprocal[t] = at.load(s.reciprocal);
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int t = 0; t < tile; ++t) {
      const Whole<C> at{row * width + t * Lanes<C>::width};
      const V centred = (at.load(x) - mean[t]) - rest[t];
      at.store(dx, project<C>(at.load(dy), centred, weight[t], mean_g[t], slope[t], reciprocal[t]));
    }
  }
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
    const Upstream<T, extras> upstream(a, block, s);
    const auto remembered = [&](auto at, const T* dy, const T* x) {
      return upstream.at(at, dy, x) * Whole<C>{at.i}.load(s.scale);
    };
    const auto measured = [&](auto at, const T* dy, const T* x) {
      const Whole<C> whole{at.i};
      return project<C>(upstream.at(at, dy, x), s.centred(at, x), whole.load(s.weight), whole.load(s.mean_g),
                        whole.load(s.slope), whole.load(s.reciprocal));
    };
    const auto exact = [&](auto at, const T* dy, const T* x) { return exact_gradient(s, upstream, at, dy, x); };
    constexpr int64_t tile = 4 * Lanes<C>::width;
    if (!extras && !a.remembered && columns <= 2 * tile && columns % tile == 0) {
      const int64_t begin = block.first_row * g.width + first;
      for (int64_t i = begin; i < begin + columns; i += tile) {
        write_gradient_columns(s, i - begin, static_cast<const T*>(a.x) + i, static_cast<const T*>(a.dy) + i,
                               static_cast<T*>(a.out) + i, block.count, g.width);
      }
      return;
    }
    const auto over_rows = [&](const auto& gradient) {
      for (int64_t row = 0; row < block.count; ++row) {
        const int64_t offset = (block.first_row + row) * g.width + first;
        const T *x = static_cast<const T*>(a.x) + offset, *dy = static_cast<const T*>(a.dy) + offset;
        T* dx = static_cast<T*>(a.out) + offset;
        if (valid.has(row)) {
          for_each_position<C>(columns, [&](auto at) { at.store(dx, gradient(at, dy, x)); });
        } else {
          std::memset(static_cast<void*>(dx), 0, columns * sizeof(T));
        }
      }
    };
    if (a.remembered) return over_rows(remembered);
    if (extras && upstream.exactly()) return over_rows(exact);
    over_rows(measured);
  });
}

}  // namespace
}  // namespace EVENKEEL_ISA
}  // namespace evenkeel

EVENKEEL_CHANNELS_WALK(channels_last_kernels_)
