// The channel pattern over rows whose neighbouring columns are channels: channels-last, and contiguous tensors with
// few positions. Compiled once per instruction set.
//
// An item is a block of consecutive rows. Its sums are kept per column, in the compute dtype for a few rows and in
// double beyond, and in the end per lane: of the differences from the first rows' mean and their squares, and where
// that was no fair guess once more about a better one, while the block is in cache. Rows that are not valid are left
// out.
#include "channels/columns_merge.h"
#include "channels/columns_sums.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

template <class T, bool extras>
void prepare_range(const ChannelsCall& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  if (a.remembered && !a.dy) return spread_remembered<C>(a);
  for_each_strip(a.geometry, begin, end, [&](int64_t first, int64_t outer, int64_t, int64_t statistics) {
    // what is exact needs only what let a gradient through to y
    if (!a.remembered && a.options.activation != Activation::relu && is_exact<extras>(a, outer)) return;
    StatisticsStrip<C> s;
    s.restore(a, first, statistics);
    fill_affine(a, s, first, statistics);
  });
}

// The lanes of a block that share a statistic: neighbours.
struct SharedLanes {
  const Block& block;
  int64_t fold;
  // Calls body(first, how many) for those of each statistic; where each has its own, with 1 as a constant.
  template <class Body>
  void for_each(const Body& body) const {
    constexpr std::integral_constant<int64_t, 1> one{};
    if (fold == 1) {
      for (int64_t lane = 0; lane < block.lanes; ++lane) body(lane, one);
      return;
    }
    for (int64_t lane = 0, count; lane < block.lanes; lane += count) {
      count = std::min(block.lanes - lane, fold - (block.first_lane + lane) % fold);
      body(lane, count);
    }
  }
};

inline double sum_of(const double* value, std::integral_constant<int64_t, 1>) { return *value; }
inline double sum_of(const double* values, int64_t count) {
  Doubles total = {};
  for_each_position<double>(count, [&](auto at) { total += at.keep(at.load(values)); });
  return sum_of_lanes(total);
}

template <class T, bool extras>
void measure_one(const ChannelsCall& a, int64_t item) {
  using C = Opmath<T>;
  using V = Vector<C>;
  const ChannelsGeometry& g = a.geometry;
  const Block block = block_of(g, g.measure_items, item);
  const ValidRows<extras> valid(a, block);
  const int64_t stride = strip_stride(g), row_stride = g.row_stride, each = g.per_channel;
  const SharedLanes shared{block, g.groups ? g.fold : 1};
  double* const partial = a.partial + (item - a.first_item) * measure_partial(g);
  double *const guess = partial, *const sum = partial + stride, *const square = sum + stride;
  const int64_t rows = valid.count();
  const double count = static_cast<double>(rows * each);
  partial[3 * stride] = count;
  if (rows == 0) return;
  C lane_shift[longest_strip], column_shift[longest_strip];
  const C* const shift = each > 1 ? column_shift : lane_shift;
  const T* x = block.at(static_cast<const T*>(a.x), g.row_stride);
  // the mean of enough rows that it is seldom unfair
  const int64_t enough = ceil_divide(rows_per_flush, shared.fold), few_rows = valid.until(enough);
  sum_lanes<1>(block, each, {guess}, [&](auto& to) {
    sum_columns<C>(few_rows, block.columns, to, [&](auto at, int64_t row, V(&out)[1]) {
      out[0] = valid.has(row) ? at.load(x + row * row_stride) : V{};
    }, [](int64_t, int64_t) {});
  });
  const double few = static_cast<double>(std::min(rows, enough) * each);
  shared.for_each([&](int64_t lane, auto lanes) {
    const double mean = sum_of(guess + lane, lanes) / (few * static_cast<double>(lanes));
    for (int64_t i = 0; i < lanes; ++i) lane_shift[lane + i] = static_cast<C>(mean);
  });
  const bool is_double =
      sizeof(C) < sizeof(double) && count_of(a, block.outer * g.statistics_per_block) <= measured_in_double;
  const auto sum_about = [&](auto difference) {
    using Number = decltype(difference(Whole<C>{}, x));
    sum_lanes<2>(block, each, {sum, square}, [&](auto& to) {
      sum_columns<C, Number>(block.count, block.columns, to, [=](auto at, int64_t row, Number(&out)[2]) {
        out[0] = valid.has(row) ? difference(at, x + row * row_stride) : Number{};
        out[1] = out[0] * out[0];
      }, [=](int64_t row, int64_t column) { fetch(x + row * row_stride + column); });
    });
  };
  const auto pass = [&] {
    if (each > 1) repeat_each(lane_shift, block.lanes, each, column_shift);
    if (!is_double) return sum_about([=](auto at, const T* row) { return at.load(row) - factor_at(at, shift); });
    double wide_shift[longest_strip];
    std::fill(std::copy_n(shift, block.columns, wide_shift), wide_shift + padded(block.columns), 0.0);
    sum_about([&](auto at, const T* row) { return load_as_doubles<C>(at, row) - Wide<C>(wide_shift + at.i); });
  };
  for (bool fair = false, again = false; !fair; again = true) {
    pass();  // the sums of statistics that were fair come out as before
    fair = true;
    shared.for_each([&](int64_t lane, auto lanes) {  // at a statistic's first lane those of all
      const double all = count * static_cast<double>(lanes);
      guess[lane] = static_cast<double>(lane_shift[lane]);
      sum[lane] = sum_of(sum + lane, lanes);
      square[lane] = sum_of(square + lane, lanes);
      if (again || is_fair_shift(all, sum[lane], square[lane])) return;
      const double better = guess[lane] + sum[lane] / all;
      for (int64_t i = 0; i < lanes; ++i) lane_shift[lane + i] = static_cast<C>(better);
      fair = false;
    });
  }
}

// Rows that are written together.
struct WrittenRows {
  Block rows;  // whole ones
  bool streamed;
  template <class T>
  WrittenRows(const ChannelsCall& a, int64_t item, const T*) {
    const ChannelsGeometry& g = a.geometry;
    const int64_t items = g.write_items(0), begin = item % items * g.rows_written, stop = begin + g.rows_written;
    rows = block_of(g, item / items, begin, std::min(stop, g.rows) - begin, 0, g.lanes_of_row);
    streamed = a.streamed && !a.may_cancel && g.width * sizeof(T) % cache_line == 0 &&
               on_a_cache_line(static_cast<const T*>(a.out) + rows.first_row * g.row_stride);
  }
  // Calls body(tile, position of its vector t, first row, end) for their tiles.
  template <class T, class L = Opmath<T>, class Body>
  void for_each_tile(const ChannelsCall& a, const Body& body) const {
    streamed ? for_each_streamed_tile<T, L>(rows.count, rows.columns, a.rows_at_a_time, body)
             : EVENKEEL_ISA::for_each_tile<L>(rows.count, rows.columns, a.rows_at_a_time, body);
  }
  // Calls body(block) for its strips.
  template <class Body>
  void for_each_strip(const ChannelsGeometry& g, const Body& body) const {
    const int64_t strip = g.lanes_of_strip, first_row = rows.first_row - rows.outer * g.rows;
    for (int64_t first = 0; first < rows.lanes; first += strip) {
      body(block_of(g, rows.outer, first_row, rows.count, first, std::min(strip, rows.lanes - first)));
    }
  }
};

// y of rows once more, in double, in the columns where terms may cancel.
template <class T, bool extras>
void write_exact(const ChannelsCall& a, const Block& block) {
  using C = Opmath<T>;
  using V = Vector<C>;
  const int64_t stride = a.geometry.row_stride;
  const ValidRows<extras> valid(a, block);
  const Factors<C> factors = column_factors<C>(a, block.outer);
  const T* x = block.at(static_cast<const T*>(a.x), stride);
  T* y = block.at(static_cast<T*>(a.out), stride);
  for_each_position<C>(block.columns, [&](auto at) {
    const LaneMask<C> lanes = factors.lanes_that_cancel(at.i);
    if (!factors.any_cancels(at.i)) return;
    for (int64_t row = 0; row < block.count; ++row) {
      const V v = activate<C>(factors.exact(at.i, at.load(x + row * stride)), a.options.activation);
      if (valid.has(row)) at.store(y + row * stride, choose(lanes, v, at.load(y + row * stride)));
    }
  });
}

// Whether rows are worth pairs: what is half empty of them in narrow ones takes longer, and so does their order for few
// elements.
inline bool fills_pairs(const Block& rows) {
  constexpr int64_t width = Lanes<pair>::width, many_columns = 2 * width, few_elements = 2048;
  const int64_t rest = rows.columns % width;
  return (rest == 0 || 2 * rest > width || rows.columns > many_columns) && rows.count * rows.columns >= few_elements;
}

// y of rows, in lanes of L.
template <class L, class T, bool extras>
void write_rows(const ChannelsCall& a, const WrittenRows& written) {
  using C = Opmath<T>;
  using V = Vector<L>;
  const int64_t stride = a.geometry.row_stride;
  const Block& block = written.rows;
  const ValidRows<extras> valid(a, block);
  const Factors<C> factors = column_factors<C>(a, block.outer);
  const int64_t ordered = is_in_order<L> ? 0 : padded_pairs(block.columns);
  const Buffer<C> scratch(3 * ordered);
  const C* const means = in_order<L>(factors.mean, scratch.data(), block.columns);
  const C* const scales = in_order<L>(factors.scale, scratch.data() + ordered, block.columns);
  const C* const shifts = in_order<L>(factors.shift, scratch.data() + 2 * ordered, block.columns);
  const T* x = block.at(static_cast<const T*>(a.x), stride);
  T* y = block.at(static_cast<T*>(a.out), stride);
  with_activation_of<extras>(a, [&](auto activation) {
    with_known(a.fetched, [&](auto fetches) {
      written.for_each_tile<T, L>(a, [&](auto tile, const auto& at, int64_t begin, int64_t end) {
        constexpr int vectors = decltype(tile)::value;
        V mean[vectors], scale[vectors], shift[vectors];
        for (int t = 0; t < vectors; ++t) {
          mean[t] = factor_in_order(at(t), means);
          scale[t] = factor_in_order(at(t), scales);
          shift[t] = factor_in_order(at(t), shifts);
        }
        const int64_t step = stride;  // copies: what a store may have changed is read again behind it
        const bool fetches_to_write = fetches && !written.streamed;
        const T* from = x + begin * step;
        T* to = y + begin * step;
        for (int64_t row = begin; row < end; ++row, from += step, to += step) {
          for (int t = 0; t < vectors; ++t) {
            if (fetches) fetch(from + at(t).i + soon);
            if (fetches_to_write) fetch_to_write(to + at(t).i + soon);
            const V v = activate<decltype(activation)::value, C>((at(t).load(from) - mean[t]) * scale[t] + shift[t]);
            at(t).store(to, valid.has(row) ? v : V{});
          }
        }
      });
    });
  });
}

template <class T, bool extras>
void write_one(const ChannelsCall& a, int64_t item) {
  using C = Opmath<T>;
  using L = typename Written<T>::lanes;
  const WrittenRows written(a, item, static_cast<const T*>(nullptr));
  is_in_order<L> || !fills_pairs(written.rows) ? write_rows<C, T, extras>(a, written) : write_rows<L, T, extras>(a, written);
  if (a.may_cancel) write_exact<T, extras>(a, written.rows);
}

template <class T, bool extras>
void sum_one(const ChannelsCall& a, int64_t item) {
  const Block block = block_of(a.geometry, a.geometry.sum_items, item);
  double* gradient = a.partial + (item - a.first_item) * sum_partial(a.geometry);
  double* product = gradient + strip_stride(a.geometry);
  const CancellingColumns<T, extras> cancelling(a, block);
  const auto sum = [&](const auto& written, const auto& written_again) {
    if (!is_short<extras>(a, block.outer)) return sum_wide<T, extras>(a, block, gradient, product, cancelling, written);
    sum_short<T, extras>(a, block, gradient, product, written);
    sum_again<T, extras>(a, block, gradient, product, cancelling, written_again);
  };
  if (!writes_with_sums(a)) return sum(NothingWritten{}, NothingWritten{});
  const RememberedGradient<T> written(a, block);
  cancelling.any() ? sum(written, CancellingGradient<T, extras>{written, cancelling}) : sum(written, NothingWritten{});
}

// The gradient of measured statistics in double, of a vector of columns.
template <class C>
struct ExactGradient {
  const Wide<C> weight, mean_g, slope, reciprocal;
  ExactGradient(const ColumnStatistics<C>& s, int64_t column)
      : weight(s.weight + column),
        mean_g(s.exact_mean_g + column),
        slope(s.exact_slope + column),
        reciprocal(s.exact_reciprocal + column) {}
  EVENKEEL_INLINE Vector<C> operator()(Wide<C> v, const Wide<C>& centred) const {
    for (int i = 0; i < Wide<C>::parts; ++i) {
      v.part[i] = ((v.part[i] * weight.part[i] - mean_g.part[i]) - centred.part[i] * slope.part[i]) * reciprocal.part[i];
    }
    return v.rounded();
  }
};

// dx of a block where terms may cancel, in double. The factors of a few columns stay in registers for some rows.
template <class T, bool extras, class Remembered>
void write_exact_gradient(const ChannelsCall& a, const Block& block, const CancellingColumns<T, extras>& cancelling,
                          const Remembered& remembered) {
  using C = Opmath<T>;
  using V = Vector<C>;
  const int64_t stride = a.geometry.row_stride;
  const ValidRows<extras> valid(a, block);
  const Factors<C> factors = column_factors<C>(a, block.outer, block.first);
  const ColumnStatistics<C> s(a, block);
  const Upstream<T, extras> upstream(a, block, factors, s, cancelling);
  const double* const kept = kept_gradients<extras>(a, block);
  const T *x = block.at(static_cast<const T*>(a.x), stride), *dy = block.at(static_cast<const T*>(a.dy), stride);
  T* dx = block.at(static_cast<T*>(a.out), stride);
  const auto write = [&](const auto& at, int64_t begin, int64_t end) {
    const ExactGradient<C> gradient(s, at.i);
    for (int64_t row = begin; row < end; ++row) {
      const T *own_dy = dy + row * stride, *own_x = x + row * stride;
      V v{};
      if (valid.has(row)) {  // else nothing was kept of it
        const Wide<C> own =
            kept ? Wide<C>(kept + row * kept_stride(a.geometry) + at.i) : upstream.wide(at, own_dy, own_x);
        v = a.remembered ? own.rounded() : gradient(own, s.wide_centred(at, own_x));
      }
      a.remembered ? remembered(at, row, v, valid.has(row)) : at.store(dx + row * stride, v);
    }
  };
  for_each_tile<C>(block.count, block.columns, rows_of_tile, [&](auto tile, const auto& at, int64_t begin, int64_t end) {
    for (int t = 0; t < decltype(tile)::value; ++t) write(at(t), begin, end);
  });
}

// The same in the compute dtype, where the statistics are remembered.
template <class T, bool extras>
void write_remembered_gradient(const ChannelsCall& a, const Block& block) {
  using C = Opmath<T>;
  const int64_t stride = a.geometry.row_stride;
  const ValidRows<extras> valid(a, block);
  const Factors<C> factors = column_factors<C>(a, block.outer, block.first);
  const RememberedGradient<T> write(a, block);
  const T *x = block.at(static_cast<const T*>(a.x), stride), *dy = block.at(static_cast<const T*>(a.dy), stride);
  with_slope_of<T, extras>(a, block, factors, [&](const auto& through) {
    for_each_tile<C>(block.count, block.columns, a.rows_at_a_time, [=](auto tile, const auto& at, int64_t begin,
                                                                       int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int t = 0; t < decltype(tile)::value; ++t) {
          const auto upstream = through(at(t), at(t).load(dy + row * stride), x + row * stride);
          write(at(t), row, upstream, valid.has(row));
        }
      }
    });
  });
}

// dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale with g = dy * weight
template <class T, bool extras>
void write_gradient_one(const ChannelsCall& a, int64_t item) {
  using C = Opmath<T>;
  using V = Vector<C>;
  const int64_t stride = a.geometry.row_stride;
  const WrittenRows written(a, item, static_cast<const T*>(nullptr));
  const Block& block = written.rows;
  if (a.remembered) {
    return written.for_each_strip(a.geometry, [&](const Block& part) {
      const RememberedGradient<T> write(a, part);
      const CancellingColumns<T, extras> cancelling(a, part);
      if (!is_short<extras>(a, block.outer)) return write_exact_gradient<T, extras>(a, part, cancelling, write);
      write_remembered_gradient<T, extras>(a, part);
      if (!cancelling.any()) return;
      write_exact_gradient<T, extras>(a, part, cancelling, CancellingGradient<T, extras>{write, cancelling});
    });
  }
  if (is_exact<extras>(a, block.outer)) {
    return written.for_each_strip(a.geometry, [&](const Block& part) {
      write_exact_gradient<T, extras>(a, part, CancellingColumns<T, extras>(a, part), NothingWritten{});
    });
  }
  const ValidRows<extras> valid(a, block);
  const Factors<C> factors = column_factors<C>(a, block.outer);
  const T *x = block.at(static_cast<const T*>(a.x), stride), *dy = block.at(static_cast<const T*>(a.dy), stride);
  T* dx = block.at(static_cast<T*>(a.out), stride);
  with_activation_of<extras>(a, [&](auto activation) {
    written.for_each_tile<T>(a, [&](auto tile, const auto& at, int64_t begin, int64_t end) {
      constexpr int vectors = decltype(tile)::value;
      V mean[vectors], reciprocal[vectors], weight[vectors], shift[vectors], slope[vectors];
      for (int t = 0; t < vectors; ++t) {
        mean[t] = factor_at(at(t), factors.mean);
        reciprocal[t] = factor_at(at(t), factors.reciprocal);
        weight[t] = factor_at(at(t), factors.weight);
        shift[t] = factor_at(at(t), factors.gradient_shift);
        slope[t] = factor_at(at(t), factors.slope);
      }
      const int64_t step = stride;  // copies, as in write_rows
      const bool fetches_to_write = !written.streamed;
      const T *from = x + begin * step, *from_dy = dy + begin * step;
      T* to = dx + begin * step;
      for (int64_t row = begin; row < end; ++row, from += step, from_dy += step, to += step) {
        for (int t = 0; t < vectors; ++t) {
          fetch(from + at(t).i + soon);
          fetch(from_dy + at(t).i + soon);
          if (fetches_to_write) fetch_to_write(to + at(t).i + soon);
          const V centred = at(t).load(from) - mean[t];
          V upstream = at(t).load(from_dy);
          if constexpr (decltype(activation)::value != Activation::none) {
            const V input = centred * factor_at(at(t), factors.scale) + factor_at(at(t), factors.shift);
            upstream = through_activation<decltype(activation)::value, C>(upstream, input);
          }
          const V v = (upstream * weight[t] - shift[t]) - (centred * reciprocal[t]) * slope[t];
          at(t).store(to, valid.has(row) ? v : V{});
        }
      }
    });
  });
}

}  // namespace

const ChannelsWalk columns_walk = {.prepare = EVENKEEL_PHASE(prepare_range),
                                   .measure = EVENKEEL_PHASE_OF_EACH(measure_one),
                                   .merge = EVENKEEL_PHASE(merge_range),
                                   .write = EVENKEEL_PHASE_OF_EACH(write_one),
                                   .sum = EVENKEEL_PHASE_OF_EACH(sum_one),
                                   .merge_sums = EVENKEEL_PHASE(merge_sums_range),
                                   .write_gradient = EVENKEEL_PHASE_OF_EACH(write_gradient_one)};

}  // namespace evenkeel::EVENKEEL_ISA
