// Channels as columns: sums over the rows of a block, in the compute dtype for a few rows or in double.
#pragma once

#include "channels/columns.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

constexpr int64_t rows_per_flush = 16;  // sums in the compute dtype stay short
constexpr int64_t rows_of_few_terms = 4, few_terms = 1024;

// Sums of K terms for each of a strip's columns, padded to whole vectors. term(position, row, out) gives K numbers, vectors
// of the compute dtype or of doubles; the sums of lanes past the last column are not used. Tiles leap from row to row,
// which no processor foresees: fetch(row, column) of the next rows is called in memory's order meanwhile.
template <class C, class Number = Vector<C>, int K, class Term, class Fetch>
inline void sum_columns(int64_t rows, int64_t columns, double* const (&total)[K], Term term, Fetch fetch,
                        int64_t rows_at_once = rows_per_flush) {
  for (int k = 0; k < K; ++k) std::memset(total[k], 0, padded(columns) * sizeof(double));
  for_each_tile<C>(rows, columns, rows_at_once, [=, &total](auto tile, const auto& at, int64_t begin, int64_t end) {
    constexpr int vectors = decltype(tile)::value;
    Number part[K][vectors] = {};
    int64_t next_row = end + at(0).i * (end - begin) / columns, next_column = at(0).i * (end - begin) % columns;
    for (int64_t row = begin; row < end; ++row) {
      for (int t = 0; t < vectors; ++t) {
        if (vectors > 1) fetch(next_row, next_column + t * Lanes<C>::width);
        Number out[K];
        term(at(t), row, out);
        for (int k = 0; k < K; ++k) part[k][t] += out[k];
      }
      next_column += vectors * Lanes<C>::width;
      if (next_column >= columns) {
        next_column = 0;
        ++next_row;
      }
    }
    for (int k = 0; k < K; ++k) {
      for (int t = 0; t < vectors; ++t) add_lanes(Wide<C>(part[k][t]), total[k] + at(t).i);
    }
  });
}

// Sums over each lane's columns.
inline void sum_each(const double* columns, int64_t lanes, int64_t each, double* out) {
  for (int64_t lane = 0; lane < lanes; ++lane, columns += each) {
    double sum = columns[0];
    for (int64_t k = 1; k < each; ++k) sum += columns[k];
    out[lane] = sum;
  }
}

// Calls body(memory for the sums of K terms for each column), and sums those of each lane.
template <int K, class Body>
inline void sum_lanes(const Block& block, int64_t each, double* const (&out)[K], const Body& body) {
  if (each == 1) return body(out);
  double memory[K][longest_strip];
  double* columns[K];
  for (int k = 0; k < K; ++k) columns[k] = memory[k];
  body(columns);
  for (int k = 0; k < K; ++k) sum_each(columns[k], block.lanes, each, out[k]);
}

// The channels of a block in which what enters the activation may cancel, with remembered statistics: a byte a column.
template <class T, bool extras>
class CancellingColumns {
 public:
  CancellingColumns(const ChannelsCall& a, const Block& block) {
    if (!extras || !a.remembered || a.options.activation == Activation::none) return;
    const ChannelsGeometry& g = a.geometry;
    const bool repeats = g.repeat > 1;
    const int64_t first = repeats ? 0 : block.first_lane, count = repeats ? g.channels : block.lanes;
    StatisticsStrip<Opmath<T>> s;
    s.restore(a, first, count);
    uint8_t lanes[longest_strip];
    for_each_position<double>(count, [&](auto at) {
      const Doubles weight = parameter_at(at, a.weights_from(first), 1), bias = parameter_at(at, a.biases_from(first), 0);
      const auto bytes = convert<VectorOf<uint8_t, 8>>(-EVENKEEL_ISA::may_cancel(s, at.i, weight, bias));
      std::memcpy(lanes + at.i, &bytes, std::min<int64_t>(count - at.i, sizeof(bytes)));
    });
    any_ = std::memchr(lanes, 1, count);
    if (!any_) return;
    for (int64_t lane = 0; lane < block.lanes; ++lane) {
      const int64_t channel = repeats ? (block.first_lane + lane) % g.channels : lane;
      std::fill_n(columns_ + lane * g.per_channel, g.per_channel, lanes[channel]);
    }
    std::fill(columns_ + block.columns, columns_ + padded(block.columns), 0);
  }
  bool any() const { return any_; }
  bool has(int64_t column) const { return any_ && columns_[column]; }
  template <class C>
  LaneMask<C> lanes(int64_t i) const {
    return -convert<LaneMask<C>>(load_bytes_of<VectorOf<uint8_t, Lanes<C>::width>>(columns_ + i));
  }

 private:
  bool any_ = false;
  uint8_t columns_[longest_strip];
};

// The upstream gradient led through the activation, in double where it has to be. ReLU lets through what it let through
// to y, whose input is in double only where remembered statistics cancel.
template <class T, bool extras>
class Upstream {
 public:
  using C = Opmath<T>;
  using V = Vector<C>;
  Upstream(const ChannelsCall& a, const Block& block, const Factors<C>& factors, const ColumnStatistics<C>& s,
           const CancellingColumns<T, extras>& cancelling)
      : factors_(factors),
        statistics_(s),
        cancelling_(cancelling),
        activation_(a.options.activation),
        exactly_(is_exact<extras>(a, block.outer) || (extras && a.remembered)),
        passes_as_y_(activation_ == Activation::relu) {}
  template <class At>
  Wide<C> wide(const At& at, const T* dy, const T* x) const {
    if constexpr (extras) {
      if (activation_ == Activation::none) return load_as_doubles<C>(at, dy);
      if (!exactly_ || (passes_as_y_ && !cancelling_.any())) return Wide<C>(as_y(at, dy, x));
      const Wide<C> input = statistics_.wide_affine(at, statistics_.wide_centred(at, x));
      const Wide<C> upstream = through_activation<C>(load_as_doubles<C>(at, dy), input, activation_);
      if (!passes_as_y_) return upstream;
      return Wide<C>(choose(cancelling_.template lanes<C>(at.i), upstream.rounded(), as_y(at, dy, x)));
    }
    return load_as_doubles<C>(at, dy);
  }

 private:
  template <class At>
  V as_y(const At& at, const T* dy, const T* x) const {
    return through_activation<C>(at.load(dy), factors_.affine(at, at.load(x)), activation_);
  }
  const Factors<C>& factors_;
  const ColumnStatistics<C>& statistics_;
  const CancellingColumns<T, extras>& cancelling_;
  const Activation activation_;
  const bool exactly_, passes_as_y_;
};

// dx of a block with remembered statistics, through which nothing flows back.
template <class T>
struct RememberedGradient {
  using C = Opmath<T>;
  const int64_t stride;
  T* const dx;
  const Factors<C> factors;
  RememberedGradient(const ChannelsCall& a, const Block& block)
      : stride(a.geometry.row_stride),
        dx(block.at(static_cast<T*>(a.out), stride)),
        factors(column_factors<C>(a, block.outer, block.first)) {}
  template <class At>
  EVENKEEL_INLINE void operator()(const At& at, int64_t row, const Vector<C>& upstream, bool valid) const {
    at.store(dx + row * stride, valid ? upstream * factor_at(at, factors.scale) : Vector<C>{});
  }
};
// The same where terms may cancel; elsewhere it stands already.
template <class T, bool extras>
struct CancellingGradient {
  using C = Opmath<T>;
  const RememberedGradient<T> all;
  const CancellingColumns<T, extras>& cancelling;
  template <class At>
  EVENKEEL_INLINE void operator()(const At& at, int64_t row, const Vector<C>& upstream, bool valid) const {
    const Vector<C> there = at.load(all.dx + row * all.stride), v = upstream * factor_at(at, all.factors.scale);
    if (valid) at.store(all.dx + row * all.stride, choose(cancelling.template lanes<C>(at.i), v, there));
  }
};

// The sums of the gradient, and of its products with the differences from the mean. In double: terms of both signs
// cancel. Few rows at a time, so that sums stay short.
template <class T, bool extras, class Written>
void sum_wide(const ChannelsCall& a, const Block& block, double* gradient, double* product,
              const CancellingColumns<T, extras>& cancelling, const Written& written) {
  using C = Opmath<T>;
  constexpr int parts = Wide<C>::parts;
  const int64_t stride = a.geometry.row_stride;
  const ValidRows<extras> valid(a, block);
  const Factors<C> factors = column_factors<C>(a, block.outer, block.first);
  const ColumnStatistics<C> s(a, block, true);
  const Upstream<T, extras> upstream(a, block, factors, s, cancelling);
  double* const kept = kept_gradients<extras>(a, block);
  const int64_t kept_row = kept_stride(a.geometry);
  const T *x = block.at(static_cast<const T*>(a.x), stride), *dy = block.at(static_cast<const T*>(a.dy), stride);
  sum_lanes<2>(block, a.geometry.per_channel, {gradient, product}, [&](auto& to) {
    for (double* totals : to) std::memset(totals, 0, padded(block.columns) * sizeof(double));
    for_each_tile<C>(block.count, block.columns, rows_of_tile, [&](auto tile, const auto& at, int64_t begin, int64_t end) {
      for (int t = 0; t < decltype(tile)::value; ++t) {
        Doubles sums[parts] = {}, products[parts] = {};
        for (int64_t row = begin; row < end; ++row) {
          if (!valid.has(row)) {
            written(at(t), row, Vector<C>{}, false);
            continue;
          }
          const Wide<C> wide = upstream.wide(at(t), dy + row * stride, x + row * stride);
          written(at(t), row, wide.rounded(), true);
          const Wide<C> difference = s.wide_centred(at(t), x + row * stride);
          if (kept) wide.store(kept + row * kept_row + at(t).i);
          for (int i = 0; i < parts; ++i) {
            sums[i] += wide.part[i];
            products[i] += wide.part[i] * difference.part[i];
          }
        }
        for (int i = 0; i < parts; ++i) {
          const Whole<double> lanes{at(t).i + i * Lanes<double>::width};
          lanes.store(to[0], lanes.load(to[0]) + sums[i]);
          lanes.store(to[1], lanes.load(to[1]) + products[i]);
        }
      }
    });
  });
}

// Calls body(through), where through(position, upstream, x) is the upstream gradient led through the activation, in the
// compute dtype.
template <class T, bool extras, class Body>
void with_slope_of(const ChannelsCall& a, const Block& block, const Factors<Opmath<T>>& factors, const Body& body) {
  using C = Opmath<T>;
  using V = Vector<C>;
  with_activation_of<extras>(a, [&](auto known) {
    constexpr Activation activation = decltype(known)::value;
    if constexpr (activation == Activation::silu && std::is_same_v<T, float>) {
      if (has_precise_slope(a)) {
        const ColumnStatistics<C> s(a, block, true);
        return body([&](const auto& at, V upstream, const T* x) __attribute__((always_inline)) {
          return upstream * precise_slope_of_silu(s.wide_affine(at, s.wide_centred(at, x)).part);
        });
      }
    }
    body([=](const auto& at, V upstream, const T* x) __attribute__((always_inline)) {
      if constexpr (activation == Activation::none) return upstream;
      return through_activation<activation, C>(upstream, factors.affine(at, at.load(x)));
    });
  });
}

// The same with short sums of floats, and the differences from the rounded mean.
template <class T, bool extras, class Written>
void sum_short(const ChannelsCall& a, const Block& block, double* gradient, double* product, const Written& written) {
  using C = Opmath<T>;
  using V = Vector<C>;
  const int64_t stride = a.geometry.row_stride;
  const ValidRows<extras> valid(a, block);
  const Factors<C> factors = column_factors<C>(a, block.outer, block.first);
  const T *x = block.at(static_cast<const T*>(a.x), stride), *dy = block.at(static_cast<const T*>(a.dy), stride);
  // of remembered statistics terms are as large as x is far from the mean, and few do not hide how they were rounded, nor
  // what SiLU leaves small
  const bool shows = a.geometry.count <= few_terms || (extras && a.options.activation == Activation::silu);
  const int64_t rows_at_once = a.remembered && shows ? rows_of_few_terms : rows_per_flush;
  with_slope_of<T, extras>(a, block, factors, [&](const auto& through) {
    sum_lanes<2>(block, a.geometry.per_channel, {gradient, product}, [&](auto& to) {
      sum_columns<C>(block.count, block.columns, to, [=](auto at, int64_t row, V(&out)[2]) {
        const V centred = at.load(x + row * stride) - factor_at(at, factors.mean);
        const V upstream = through(at, at.load(dy + row * stride), x + row * stride);
        out[0] = valid.has(row) ? upstream : V{};
        out[1] = valid.has(row) ? upstream * centred : V{};
        written(at, row, out[0], valid.has(row));
      }, [=](int64_t row, int64_t column) {
        fetch(x + row * stride + column);
        fetch(dy + row * stride + column);
      }, rows_at_once);
    });
  });
}

// Lanes whose sums floats do not hold, or what enters their activation, in double.
template <class T, bool extras, class Written>
void sum_again(const ChannelsCall& a, const Block& block, double* gradient, double* product,
               const CancellingColumns<T, extras>& cancelling, const Written& written) {
  using C = Opmath<T>;
  const int64_t each = a.geometry.per_channel;
  if (!cancelling.any() && all_hold(gradient, product, block.lanes)) return;
  int64_t lost[longest_strip], count = 0;
  for (int64_t i = 0; i < block.lanes; ++i) {
    if (cancelling.has(i * each) || !sums_hold<C>(gradient[i], product[i])) lost[count++] = i;
  }
  if (count == 0) return;
  const ColumnStatistics<C> s(a, block);
  count = std::remove_if(lost, lost + count, [&](int64_t i) { return std::isnan(s.exact_reciprocal[i * each]); }) - lost;
  if (count == 0) return;
  double wide_gradient[longest_strip], wide_product[longest_strip];
  sum_wide<T, extras>(a, block, wide_gradient, wide_product, cancelling, written);
  for (int64_t k = 0; k < count; ++k) {
    const int64_t i = lost[k];
    gradient[i] = wide_gradient[i];
    // as from the rounded mean
    product[i] = about_exact_mean(wide_product[i], -static_cast<double>(s.mean_rest[i * each]), wide_gradient[i]);
  }
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
