// The backward of the row pattern.
#include "rows_common.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

// The rows of one call in the arithmetic type.
template <class C>
struct BackwardRow {
  const C *x, *dy, *weight, *dsum;
  Statistics<C> statistics;
};

// What the sums over a row leave to subtract from its gradient.
template <class C>
struct Slopes {
  C shift, along;
};

// The backward of one row has two passes:
//   x_hat = (x - mean) / scale,  g = dy * weight
//   dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale + dsum,  dweight += dy * x_hat,  dbias += dy
// The means are sums where the scale is a length. With Centring::done, x is x_hat itself.
// Rows come by value: behind a reference, every store might change their pointers and statistics.
// This is the first: it adds to the accumulators (padded, or null) and finds the means.
template <Centring centring, class C>
Slopes<C> sum_row(const RowsSpec& spec, const BackwardRow<C> r, C* dweight, C* dbias) {
  using V = typename Lanes<C>::vector;
  const Statistics<C> s = r.statistics;
  double sums[2];
  sum_terms<C>(spec.features, sums, [&](auto at, V(&out)[2]) {
    const Whole<C> whole{at.i};  // the accumulators are padded
    const V upstream = at.load(r.dy);
    V x_hat = centred<centring>(at, r.x, s);
    if constexpr (centring != Centring::done) x_hat = x_hat * s.reciprocal;
    x_hat = at.keep(x_hat);
    const V g = r.weight ? upstream * at.load(r.weight) : upstream;
    // every load stands before the first store: the compiler must keep their order, and a load waits for a store to
    // an address with the same last 12 bits
    const V more_dbias = dbias ? whole.load(dbias) + upstream : V{};
    if (dweight) whole.store(dweight, whole.load(dweight) + upstream * x_hat);
    if (dbias) whole.store(dbias, more_dbias);
    out[0] = g;
    out[1] = g * x_hat;
  });
  const double reciprocal = s.reciprocal;
  const C shift = spec.center() ? static_cast<C>(sums[0] / spec.count() * reciprocal) : 0;
  const double slope = sums[1] / spec.count() * s.bend * reciprocal;
  return {shift, static_cast<C>(centring == Centring::done ? slope : slope * reciprocal)};
}

// And this the second.
template <Centring centring, class C, class Out>
void write_gradient(const RowsSpec& spec, const BackwardRow<C> r, const Slopes<C> slopes, Out* dx,
                    bool streamed) {
  using V = typename Lanes<C>::vector;
  const Statistics<C> s = r.statistics;
  const auto write = [&](const auto& add_dsum) {
    for_each_position<C>(spec.features, [&](auto at) {
      V g = at.load(r.dy) * s.reciprocal;
      if (r.weight) g = g * at.load(r.weight);
      if constexpr (centring != Centring::none) g = g - slopes.shift;
      at.store(dx, add_dsum(at, g - centred<centring>(at, r.x, s) * slopes.along));
    }, streamed);
  };
  if (r.dsum) {
    write([&](const auto& at, V v) { return v + at.load(r.dsum); });
  } else {
    write([](const auto&, V v) { return v; });
  }
}

template <class C>
Slopes<C> sum_row(const RowsBackward& a, const BackwardRow<C>& r, C* dweight, C* dbias) {
  if (a.from_output) return sum_row<Centring::done>(a.spec, r, dweight, dbias);
  Slopes<C> found{};
  with_centring(a.spec, r.statistics, [&](auto centring) {
    found = sum_row<centring.value>(a.spec, r, dweight, dbias);
  });
  return found;
}

template <class C, class Out>
void write_gradient(const RowsBackward& a, const BackwardRow<C>& r, const Slopes<C>& slopes, Out* dx,
                    bool streamed = false) {
  if (a.from_output) return write_gradient<Centring::done>(a.spec, r, slopes, dx, streamed);
  with_centring(a.spec, r.statistics, [&](auto centring) {
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
  const Statistics<double> given{0, 0, r.statistics.reciprocal, r.statistics.bend};
  wide.statistics = a.from_output ? given : measure<double>(wide.x, a.spec);
  const Slopes<double> slopes = sum_row(a, wide, dweight, dbias);
  if (!a.dx.data && !a.dresidual.data) return;
  double* out = scratch + 4 * stride;
  write_gradient(a, wide, slopes, out);
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
  with_row<C>(a.dx, row, [&](auto* dx) { write_gradient(a, r, slopes, dx, a.streamed && on_a_cache_line(dx)); });
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
  const Buffer<C> scratch(7 * stride);
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
  // A row's sums are taken before the gradient of the one above it is written, as in the forward.
  const bool ahead = n <= 1024;
  C* const narrowed = scratch.data() + 6 * stride;
  BackwardRow<C> waiting;
  Slopes<C> its_slopes;
  int64_t waiting_row = -1;
  for (int64_t row = first; row < last; ++row) {
    C* space = scratch.data() + row % 2 * 3 * stride;
    BackwardRow<C> r;
    r.x = source_row(a, row, space, space + stride);
    r.dy = row_of(a.dy, row, n, space + stride);
    r.dsum = a.dsum.data ? row_of(a.dsum, row, n, space + 2 * stride) : nullptr;
    r.weight = static_cast<const C*>(a.weight);
    r.statistics = restore(a.spec, static_cast<const C*>(a.statistics) + row * width);
    bool done = false;
    if constexpr (is_float) {
      if (!safe(r.statistics)) {
        backward_row_in_double(a, r, row, dweight_total, dbias_total);
        done = true;
      }
    }
    const Slopes<C> slopes = done ? Slopes<C>{} : sum_row(a, r, dweight, dbias);
    if (waiting_row >= 0) write_gradients(a, waiting, its_slopes, waiting_row, narrowed);
    waiting_row = done || !ahead ? -1 : row;
    if (!done && !ahead) write_gradients(a, r, slopes, row, narrowed);
    waiting = r;
    its_slopes = slopes;
    if (is_float && (row - first) % rows_per_flush == rows_per_flush - 1) {
      if (dweight) flush(dweight_total, dweight, n);
      if (dbias) flush(dbias_total, dbias, n);
    }
  }
  if (waiting_row >= 0) write_gradients(a, waiting, its_slopes, waiting_row, narrowed);
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
  if (a.streamed) finish_streams();
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
