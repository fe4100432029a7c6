// The backward of the row pattern.
#include "rows/parameter_sums.h"
#include "rows/statistics.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// A row in the compute dtype.
template <class C>
struct BackwardRow {
  const C *x, *dy, *weight, *dsum;
  Statistics<C> statistics;
};

// What is subtracted from a row's gradient: a constant, and x_hat times a slope.
template <class C>
struct Slopes {
  C shift, along;
};

// R rows in the dtype in which they are read.
template <class C, class T, int R>
struct BackwardWork {
  const T *x[R], *dy[R];
  T* dx[R];
  Statistics<C> statistics[R];
  Slopes<C> slopes[R] = {};
  int64_t x_ahead = 0, dy_ahead = 0, dx_ahead = 0;  // elements to what is fetched meanwhile, of one row
};

// The backward of a row has two passes:
//   x_hat = (x - mean) / scale,  g = dy * weight
//   dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale + dsum,  dweight += dy * x_hat,  dbias += dy
// The means are sums where the scale is a length. With Centring::done, x is x_hat itself.
// This is the first: it adds to the accumulators (padded, or null) and finds the means. With R rows at once, parameters
// and accumulators are read and written once for all. The weight lies in the order in which rows are read.
template <Centring centring, bool weighted, int chains, class C, class T, int R>
__attribute__((flatten)) void sum_rows(const RowsSpec& spec, BackwardWork<C, T, R>& work, const C* weight, C* dweight,
                                       C* dbias) {
  using L = typename Summed<T>::lanes;
  using V = Vector<L>;
  const BackwardWork<C, T, R> rows = work;  // a copy: every store might change the pointers and statistics
  double sums[2 * R];
  sum_terms<L, chains>(spec.features, sums, [&](auto at, V(&out)[2 * R]) {
    const Whole<L> whole{at.i};  // the accumulators are padded
    // every load stands before the first store: the compiler must keep their order, and a load waits for a store to
    // an address with the same last 12 bits
    V w{}, more_dweight{}, more_dbias{};
    if constexpr (weighted && std::is_same_v<L, pair>) w = whole.load_in_order(weight);
    if constexpr (weighted && !std::is_same_v<L, pair>) w = at.load(weight);
    if (dweight) more_dweight = whole.load_in_order(dweight);
    if (dbias) more_dbias = whole.load_in_order(dbias);
    for (int r = 0; r < R; ++r) {
      const V upstream = at.load(rows.dy[r]);
      V x_hat = centred<centring>(at, rows.x[r], rows.statistics[r]);
      if constexpr (centring != Centring::done) x_hat = x_hat * rows.statistics[r].reciprocal;
      x_hat = at.keep(x_hat);
      V g = upstream;
      if constexpr (weighted) g = upstream * w;
      more_dweight += upstream * x_hat;
      more_dbias += upstream;
      out[2 * r] = g;
      out[2 * r + 1] = g * x_hat;
    }
    if (dweight) whole.store_in_order(dweight, more_dweight);
    if (dbias) whole.store_in_order(dbias, more_dbias);
  });
  for (int r = 0; r < R; ++r) {
    const double reciprocal = rows.statistics[r].reciprocal, count = spec.count();
    const double slope = sums[2 * r + 1] / count * rows.statistics[r].bend * reciprocal;
    work.slopes[r].shift = spec.center() ? static_cast<C>(sums[2 * r] / count * reciprocal) : 0;
    work.slopes[r].along = static_cast<C>(centring == Centring::done ? slope : slope * reciprocal);
  }
}

// And this the second, of one row. Rows come by value: behind a reference, every store might change their pointers and
// statistics.
template <Centring centring, class C, class Out>
void write_gradient(const RowsSpec& spec, const BackwardRow<C> r, const Slopes<C> slopes, Out* dx,
                    bool streamed) {
  using V = Vector<C>;
  const Statistics<C> s = r.statistics;
  const auto write = [&](const auto& add_dsum) {
    for_each_position<C>(spec.features, [&](auto at) {
      V g = at.load(r.dy) * s.reciprocal;
      if (r.weight) g = g * at.load(r.weight);
      if constexpr (centring != Centring::none) g = g - slopes.shift;
      at.store(dx, add_dsum(at, g - centred<centring>(at, r.x, s) * slopes.along));
    }, streamed, head_of(dx, spec.features, streamed));
  };
  if (r.dsum) {
    write([&](const auto& at, V v) { return v + at.load(r.dsum); });
  } else {
    write([](const auto&, V v) { return v; });
  }
}

// Calls body with the row's centring, done where the row is the output, as a compile-time constant.
template <class C, class Body>
void with_centring(const RowsBackward& a, const Statistics<C>& s, const Body& body) {
  if (a.from_output) return body(std::integral_constant<Centring, Centring::done>{});
  with_centring(a.spec, s, body);
}

template <class C>
Slopes<C> sum_row(const RowsBackward& a, const BackwardRow<C>& r, C* dweight, C* dbias) {
  BackwardWork<C, C, 1> work{{r.x}, {r.dy}, {}, {r.statistics}};
  with_centring(a, r.statistics, [&](auto centring) {
    r.weight ? sum_rows<centring.value, true, 2>(a.spec, work, r.weight, dweight, dbias)
             : sum_rows<centring.value, false, 2>(a.spec, work, r.weight, dweight, dbias);
  });
  return work.slopes[0];
}

template <class C, class Out>
void write_gradient(const RowsBackward& a, const BackwardRow<C>& r, const Slopes<C>& slopes, Out* dx,
                    bool streamed = false) {
  with_centring(a, r.statistics, [&](auto centring) {
    write_gradient<centring.value>(a.spec, r, slopes, dx, streamed);
  });
}

__attribute__((noinline)) void backward_row_in_double(const RowsBackward& a, const BackwardRow<float>& r, int64_t row,
                                                      double* dweight, double* dbias) {
  const int64_t n = a.spec.features, stride = a.padded_features;
  const Buffer<double> rows(5 * stride);
  double* scratch = rows.data();
  BackwardRow<double> wide;
  wide.x = in_double(r.x, scratch, n);
  wide.dy = in_double(r.dy, scratch + stride, n);
  wide.weight = in_double(r.weight, scratch + 2 * stride, n);
  wide.dsum = in_double(r.dsum, scratch + 3 * stride, n);
  const Statistics<double> saved{0, 0, r.statistics.reciprocal, r.statistics.bend};
  wide.statistics = a.from_output ? saved : measure<double>(wide.x, a.spec);
  const Slopes<double> slopes = sum_row(a, wide, dweight, dbias);
  if (!a.dx.data && !a.dresidual.data) return;
  double* out = scratch + 4 * stride;
  write_gradient(a, wide, slopes, out);
  const auto write = [&](auto* data) { narrow(data, out, n); };
  if (a.dx.data) with_row<float>(a.dx, row, write);
  if (a.dresidual.data) with_row<float>(a.dresidual, row, write);
}

// Rounds a row of floats to that of another dtype.
inline void round_row(const Rows& target, int64_t row, const float* source, int64_t n) {
  with_row<float>(target, row, [&](auto* out) {
    for_each_position<float>(n, [&](auto at) { at.store(out, at.load(source)); });
  });
}

// Writes dx, and rounds the same values to dresidual's dtype where that is asked for.
template <class C>
void write_gradients(const RowsBackward& a, const BackwardRow<C>& r, const Slopes<C>& slopes, int64_t row, C* scratch) {
  if constexpr (std::is_same_v<C, float>) {
    if (a.dresidual.data) {
      write_gradient(a, r, slopes, scratch);
      round_row(a.dresidual, row, scratch, a.spec.features);
      if (a.dx.data) round_row(a.dx, row, scratch, a.spec.features);
      return;
    }
  }
  if (!a.dx.data) return;
  with_row<C>(a.dx, row, [&](auto* dx) { write_gradient(a, r, slopes, dx, a.streamed && reaches_a_line(dx)); });
}

// The row that was normalized: x, or x + residual; from the output, the normalized row itself.
template <class C>
const C* source_row(const RowsBackward& a, int64_t row, C* scratch, C* more) {
  const int64_t n = a.spec.features;
  const C* x = row_of(a.x, row, n, scratch);
  if (a.residual.data) {
    const C* residual = row_of(a.residual, row, n, more);
    for_each_position<C>(n, [&](auto at) { at.store(scratch, at.load(x) + at.load(residual)); });
    return scratch;
  }
  if (!a.from_output) return x;
  const C *weight = static_cast<const C*>(a.weight), *bias = static_cast<const C*>(a.bias);
  if (!weight && !bias) return x;
  for_each_position<C>(n, [&](auto at) {
    auto v = at.load(x);
    if (bias) v = v - at.load(bias);
    at.store(scratch, weight ? v / at.load(weight) : v);
  });
  return scratch;
}

// One row by itself, of any kind.
template <class L, class C>
void backward_row(const RowsBackward& a, int64_t row, ParameterSums<L, C>& sums, C* scratch) {
  const int64_t n = a.spec.features, stride = a.padded_features;
  BackwardRow<C> r;
  r.x = source_row(a, row, scratch, scratch + stride);
  r.dy = row_of(a.dy, row, n, scratch + stride);
  r.dsum = a.dsum.data ? row_of(a.dsum, row, n, scratch + 2 * stride) : nullptr;
  r.weight = static_cast<const C*>(a.weight);
  r.statistics = restore(a.spec, static_cast<const C*>(a.statistics) + row * a.spec.statistics_width());
  if constexpr (std::is_same_v<C, float>) {
    if (!safe(r.statistics)) {
      return backward_row_in_double(a, r, row, sums.dweight_total(), sums.dbias_total());
    }
  }
  const Slopes<C> slopes = sum_row(a, r, sums.dweight_of_unusual(), sums.dbias_of_unusual());
  write_gradients(a, r, slopes, row, scratch + 3 * stride);
}

template <Centring centring, bool weighted, class C, class T, int R>
__attribute__((flatten)) void write_rows(const RowsSpec& spec, const BackwardWork<C, T, R> rows, const C* weight,
                                         bool streamed) {
  using L = typename Written<T>::lanes;
  using V = Vector<L>;
  for_each_position<L>(spec.features, [&](auto at) {
    if constexpr (R == 1) {
      if (rows.x_ahead) {
        fetch(rows.x[0] + at.i + rows.x_ahead);
        fetch(rows.dy[0] + at.i + rows.dy_ahead);
        if (!streamed) fetch_to_write(rows.dx[0] + at.i + rows.dx_ahead);
      }
    }
    V w{}, v[R];
    if constexpr (weighted) w = at.load(weight);
    for (int r = 0; r < R; ++r) {
      V g = at.load(rows.dy[r]) * rows.statistics[r].reciprocal;
      if constexpr (weighted) g = g * w;
      if constexpr (centring != Centring::none) g = g - rows.slopes[r].shift;
      v[r] = g - centred<centring>(at, rows.x[r], rows.statistics[r]) * rows.slopes[r].along;
    }
    for (int r = 0; r < R; ++r) at.store(rows.dx[r], v[r]);
  }, streamed, head_of(rows.dx[0], spec.features, streamed));
}

template <Centring centring, bool weighted, class L, class C, class T, int R>
void run_rows(const RowsBackward& a, BackwardWork<C, T, R>& rows, const C* weight_in_order,
              const ParameterSums<L, C>& sums, LineWriter<T>& lines) {
  sum_rows<centring, weighted, 1>(a.spec, rows, weight_in_order, sums.dweight(), sums.dbias());
  if (!a.dx.data) return;
  if (lines) rows.dx[0] = lines.place(rows.dx[0]);
  const bool streamed = R == 1 && a.streamed && !lines && reaches_a_line(rows.dx[0]);
  write_rows<centring, weighted>(a.spec, rows, static_cast<const C*>(a.weight), streamed);
  if (lines) lines.add(a.spec.features);
}

// R rows from `row` on, unless one of them is not of the usual kind.
template <class T, int R, class L, class C>
bool backward_rows(const RowsBackward& a, int64_t row, const C* weight_in_order, const ParameterSums<L, C>& sums,
                   LineWriter<T>& lines) {
  BackwardWork<C, T, R> rows;
  const Centring usual = a.spec.center() ? Centring::rounded : Centring::none;
  const int width = a.spec.statistics_width();
  for (int r = 0; r < R; ++r) {
    rows.statistics[r] = restore(a.spec, static_cast<const C*>(a.statistics) + (row + r) * width);
    if (!safe(rows.statistics[r]) || centring_of(a.spec, rows.statistics[r]) != usual) return false;
    rows.x[r] = static_cast<const T*>(a.x.data) + row_offset(a.x.layout, row + r);
    rows.dy[r] = static_cast<const T*>(a.dy.data) + row_offset(a.dy.layout, row + r);
    rows.dx[r] = a.dx.data ? static_cast<T*>(a.dx.data) + row_offset(a.dx.layout, row + r) : nullptr;
  }
  if (R == 1 && a.fetched) {
    constexpr int64_t soon = 4096 / sizeof(T);
    const int64_t later = ceil_divide(soon, a.spec.features);
    rows.x_ahead = distance_to(a.x, row, later);
    rows.dy_ahead = distance_to(a.dy, row, later);
    rows.dx_ahead = distance_to(a.dx, row, later);
  }
  if (usual == Centring::none) {
    a.weight ? run_rows<Centring::none, true>(a, rows, weight_in_order, sums, lines)
             : run_rows<Centring::none, false>(a, rows, weight_in_order, sums, lines);
  } else {
    a.weight ? run_rows<Centring::rounded, true>(a, rows, weight_in_order, sums, lines)
             : run_rows<Centring::rounded, false>(a, rows, weight_in_order, sums, lines);
  }
  return true;
}

// Whether rows are read and written as they lie: all of one dtype, and nothing to add.
bool is_plain(const RowsBackward& a) {
  return !a.from_output && !a.residual.data && !a.dsum.data && !a.dresidual.data && a.dy.dtype == a.x.dtype &&
         (!a.dx.data || a.dx.dtype == a.x.dtype);
}

// T: the dtype of plain rows.
template <class T>
void backward_task(const RowsBackward& a, int64_t task, bool plain) {
  using C = Opmath<T>;
  using L = typename Summed<T>::lanes;
  constexpr int64_t rows_per_flush = 16;  // float sums of 64 rows exceeded 3 ulps; longer sums are double
  const int64_t n = a.spec.features, stride = padded_pairs(n);
  const Buffer<C> scratch(plain ? 0 : 4 * stride), parameter(is_in_order<L> ? 0 : stride);
  ParameterSums<L, C> sums(a, task);
  LineWriter<T> lines(a.dx.data, n, a.streamed && plain);
  const C* weight = in_order<L>(static_cast<const C*>(a.weight), parameter.data(), n);
  const int64_t first = task * a.rows_per_task;
  const int64_t last = first + a.rows_per_task < a.spec.rows ? first + a.rows_per_task : a.spec.rows;
  // Long rows push the parameters out of the first-level cache, pairs load much for one row: two rows share them.
  // Memory is read best one row after the other.
  const bool two = plain && !a.streamed && (n > 2048 || std::is_same_v<L, pair>);
  for (int64_t row = first; row < last;) {
    const int64_t until = row + rows_per_flush < last ? row + rows_per_flush : last;
    sums.start();
    while (row < until) {
      if (two && row + 2 <= until && backward_rows<T, 2>(a, row, weight, sums, lines)) {
        row += 2;
      } else if (plain && backward_rows<T, 1>(a, row, weight, sums, lines)) {
        ++row;
      } else if (plain) {
        const Buffer<C> rare(4 * stride);
        backward_row(a, row++, sums, rare.data());
      } else {
        backward_row(a, row++, sums, scratch.data());
      }
    }
    sums.flush();
  }
}

}  // namespace

void backward_tasks(const RowsBackward& a, int64_t begin, int64_t end) {
  const bool plain = is_plain(a);
  for (int64_t task = begin; task < end; ++task) {
    with_floating(plain || a.is_double ? a.x.dtype : DType::float32, [&](auto t) {
      backward_task<decltype(t)>(a, task, plain);
    });
  }
  if (a.streamed) finish_streams();
}

}  // namespace evenkeel::EVENKEEL_ISA
