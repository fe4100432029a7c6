// The backward of the row pattern.
#include "rows_common.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

// One row of the backward: adds to the accumulators (padded, or null) and writes dx unless it is null.
//   x_hat = (x - mean) / scale,  g = dy * weight
//   dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale + dsum,  dweight += dy * x_hat,  dbias += dy
// The means are sums where the scale is a length. With Centring::done, x is x_hat itself.
template <Centring centring, class C, class Out>
void backward_row(const RowsSpec& spec, const C* x, const C* dy, const C* weight, const C* dsum, const Statistics<C>& s,
                  C* dweight, C* dbias, Out* dx) {
  using V = typename Lanes<C>::vector;
  const int64_t n = spec.features;
  double sums[2];
  sum_terms<C>(n, sums, [&](auto at, V(&out)[2]) {
    const Whole<C> whole{at.i};  // the accumulators are padded
    const V upstream = at.load(dy);
    V x_hat = centred<centring>(at, x, s);
    if constexpr (centring != Centring::done) x_hat = x_hat * s.reciprocal;
    x_hat = at.keep(x_hat);
    const V g = weight ? upstream * at.load(weight) : upstream;
    // every load stands before the first store: the compiler must keep their order, and a load waits for a store to
    // an address with the same last 12 bits
    const V more_dbias = dbias ? whole.load(dbias) + upstream : V{};
    if (dweight) whole.store(dweight, whole.load(dweight) + upstream * x_hat);
    if (dbias) whole.store(dbias, more_dbias);
    out[0] = g;
    out[1] = g * x_hat;
  });
  if (!dx) return;
  const double reciprocal = s.reciprocal;
  const C shift = spec.center() ? static_cast<C>(sums[0] / spec.count() * reciprocal) : 0;
  const double slope = sums[1] / spec.count() * s.bend * reciprocal;
  const C along = static_cast<C>(centring == Centring::done ? slope : slope * reciprocal);
  const auto write = [&](const auto& add_dsum) {
    for_each_position<C>(n, [&](auto at) {
      V g = at.load(dy) * s.reciprocal;
      if (weight) g = g * at.load(weight);
      if constexpr (centring != Centring::none) g = g - shift;
      at.store(dx, add_dsum(at, g - centred<centring>(at, x, s) * along));
    });
  };
  if (dsum) {
    write([&](const auto& at, V v) { return v + at.load(dsum); });
  } else {
    write([](const auto&, V v) { return v; });
  }
}

template <class C, class Out>
void backward_row(const RowsSpec& spec, bool is_x_hat, const C* x, const C* dy, const C* weight, const C* dsum,
                  const Statistics<C>& s, C* dweight, C* dbias, Out* dx) {
  if (is_x_hat) return backward_row<Centring::done>(spec, x, dy, weight, dsum, s, dweight, dbias, dx);
  with_centring(spec, s, [&](auto centring) {
    backward_row<centring.value>(spec, x, dy, weight, dsum, s, dweight, dbias, dx);
  });
}

// The rows of one call in the arithmetic type.
template <class C>
struct BackwardRow {
  const C *x, *dy, *weight, *dsum;
  Statistics<C> statistics;
};

__attribute__((noinline)) void backward_row_in_double(const RowsBackward& a, const BackwardRow<float>& r, int64_t row,
                                                      double* dweight, double* dbias) {
  const int64_t n = a.spec.features, stride = a.padded_features;
  const Buffer<double> rows(5 * stride);
  double* scratch = rows.data();
  const double* x = in_double(r.x, scratch, n);
  const double* dy = in_double(r.dy, scratch + stride, n);
  const double* weight = in_double(r.weight, scratch + 2 * stride, n);
  const double* dsum = in_double(r.dsum, scratch + 3 * stride, n);
  double* out = a.dx.data || a.dresidual.data ? scratch + 4 * stride : nullptr;
  const Statistics<double> given{0, 0, r.statistics.reciprocal, r.statistics.bend};
  const Statistics<double> s = a.from_output ? given : measure(x, a.spec);
  backward_row(a.spec, a.from_output, x, dy, weight, dsum, s, dweight, dbias, out);
  const auto write = [&](auto* data) { narrow(data, out, n); };
  if (a.dx.data) with_row<float>(a.dx, row, write);
  if (a.dresidual.data) with_row<float>(a.dresidual, row, write);
}

template <class C>
void flush(double* total, C* part, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    total[i] += part[i];
    part[i] = 0;
  }
}

// Rounds a row of floats to that of another dtype.
inline void round_row(const Rows& target, int64_t row, const float* source, int64_t n) {
  with_row<float>(target, row, [&](auto* out) {
    for_each_position<float>(n, [&](auto at) { at.store(out, at.load(source)); });
  });
}

// Writes dx, and rounds the same values to dresidual's dtype where that is asked for.
template <class C>
void backward_row(const RowsBackward& a, const BackwardRow<C>& r, int64_t row, C* dweight, C* dbias, C* scratch) {
  const auto run = [&](auto* dx) {
    backward_row(a.spec, a.from_output, r.x, r.dy, r.weight, r.dsum, r.statistics, dweight, dbias, dx);
  };
  if constexpr (std::is_same_v<C, float>) {
    if (a.dresidual.data) {
      run(scratch);
      round_row(a.dresidual, row, scratch, a.spec.features);
      if (a.dx.data) round_row(a.dx, row, scratch, a.spec.features);
      return;
    }
  }
  if (!a.dx.data) return run(static_cast<C*>(nullptr));
  with_row<C>(a.dx, row, run);
}

// What was normalized: x, x + residual, or the normalized row itself found from the output.
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

template <class C>
void backward_task(const RowsBackward& a, int64_t task) {
  constexpr bool is_float = sizeof(C) == sizeof(float);
  constexpr int64_t rows_per_flush = 16;  // float sums of 64 rows exceeded 3 ulps; longer sums are double
  const int64_t n = a.spec.features, stride = a.padded_features, width = a.spec.statistics_width();
  const Buffer<C> scratch(4 * stride);
  const Buffer<C> accumulators(is_float ? 2 * stride : 0);
  double* dweight_total = a.dweight_partial ? a.dweight_partial + task * stride : nullptr;
  double* dbias_total = a.dbias_partial ? a.dbias_partial + task * stride : nullptr;
  C *dweight, *dbias;
  if constexpr (is_float) {
    std::memset(accumulators.data(), 0, 2 * stride * sizeof(C));
    dweight = dweight_total ? accumulators.data() : nullptr;
    dbias = dbias_total ? accumulators.data() + stride : nullptr;
  } else {  // no shorter sums to flush
    dweight = dweight_total;
    dbias = dbias_total;
  }
  const int64_t first = task * a.rows_per_task;
  const int64_t last = first + a.rows_per_task < a.spec.rows ? first + a.rows_per_task : a.spec.rows;
  for (int64_t row = first; row < last; ++row) {
    C* space = scratch.data();
    BackwardRow<C> r;
    r.x = source_row(a, row, space, space + stride);
    r.dy = row_of(a.dy, row, n, space + stride);
    r.dsum = a.dsum.data ? row_of(a.dsum, row, n, space + 2 * stride) : nullptr;
    r.weight = static_cast<const C*>(a.weight);
    r.statistics = restore(a.spec, static_cast<const C*>(a.statistics) + row * width);
    if constexpr (is_float) {
      if (!safe(r.statistics)) {
        backward_row_in_double(a, r, row, dweight_total, dbias_total);
        continue;
      }
    }
    backward_row(a, r, row, dweight, dbias, space + 3 * stride);
    if (is_float && (row - first) % rows_per_flush == rows_per_flush - 1) {
      if (dweight) flush(dweight_total, dweight, n);
      if (dbias) flush(dbias_total, dbias, n);
    }
  }
  if (is_float) {
    if (dweight) flush(dweight_total, dweight, n);
    if (dbias) flush(dbias_total, dbias, n);
  }
}

}  // namespace

void backward_tasks(const RowsBackward& a, int64_t begin, int64_t end) {
  for (int64_t task = begin; task < end; ++task) {
    a.is_double ? backward_task<double>(a, task) : backward_task<float>(a, task);
  }
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
