// The forward of the row pattern: LayerNorm, RMSNorm, division by the length, and a residual added before.
#include <cmath>

#include "rows/statistics.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// The mean square with the roundings of torch's x.float().pow(2).mean(-1): four sums of eight lanes, in four levels of
// which each takes up the one below after as many terms. Models whose norm rounds early have these bits.
float mean_square_as_torch(const float* x, int64_t n) {
  constexpr int levels = 4, lanes = 8, side_by_side = 4, group = lanes * side_by_side;
  float sums[group] = {};
  const int64_t steps = n / group, vectors = n / lanes;
  int64_t done = 0;
  float total = 0;
  if (n < lanes) {
    for (; done + side_by_side <= n; done += side_by_side) {
      for (int i = 0; i < side_by_side; ++i) sums[i] += x[done + i] * x[done + i];
    }
    for (; done < n; ++done) sums[0] += x[done] * x[done];
    for (int i = 1; i < side_by_side; ++i) sums[0] += sums[i];
    return sums[0] / static_cast<float>(n);
  }
  int log = 0;
  while ((int64_t{1} << log) < steps) ++log;
  const int power = log / levels > 4 ? log / levels : 4;
  Floats low[levels] = {}, high[levels] = {};
  int64_t step = 0;
  const auto add = [&] {
    const Floats a = load(x + step * group), b = load(x + step * group + 16);
    low[0] += a * a;
    high[0] += b * b;
    ++step;
  };
  while (step + (int64_t{1} << power) <= steps) {
    for (int64_t end = step + (int64_t{1} << power); step < end;) add();
    for (int level = 1; level < levels; ++level) {
      low[level] += low[level - 1];
      high[level] += high[level - 1];
      low[level - 1] = high[level - 1] = Floats{};
      if (step & (((int64_t{1} << power) - 1) << (level * power))) break;
    }
  }
  while (step < steps) add();
  for (int level = 1; level < levels; ++level) {
    low[0] += low[level];
    high[0] += high[level];
  }
  store(sums, low[0]);
  store(sums + 16, high[0]);
  for (int64_t vector = steps * side_by_side; vector < vectors; ++vector) {
    for (int l = 0; l < lanes; ++l) sums[l] += x[vector * lanes + l] * x[vector * lanes + l];
  }
  for (int i = 1; i < side_by_side; ++i) {
    for (int l = 0; l < lanes; ++l) sums[l] += sums[i * lanes + l];
  }
  for (int64_t i = vectors * lanes; i < n; ++i) total += x[i] * x[i];
  for (int l = 0; l < lanes; ++l) total += sums[l];
  return total / static_cast<float>(n);
}

// x * reciprocal rounded to T, times the weight.
template <class T, class Out>
void write_row_early(const float* x, const float* weight, float reciprocal, int64_t n, Out* y) {
  for_each_position<float>(n, [&](auto at) {
    T rounded[16];
    store(rounded, at.load(x) * reciprocal);
    const Floats v = load(rounded);
    at.store(y, weight ? v * at.load(weight) : v);
  });
}

template <class Out>
void write_row_early(const RowsForward& a, const float* x, float reciprocal, Out* y) {
  const float* weight = static_cast<const float*>(a.weight);
  if (a.x.dtype == DType::bfloat16) {
    write_row_early<bf16>(x, weight, reciprocal, a.spec.features, y);
  } else {
    write_row_early<f16>(x, weight, reciprocal, a.spec.features, y);
  }
}

// Some rows with one kind of centring.
template <class C, class T, class Out, int R>
struct Work {
  const T* x[R];
  Out* y[R];
  Statistics<C> statistics[R];
  int64_t x_ahead = 0, y_ahead = 0;  // elements to what is fetched meanwhile, of one row
};

// The parameters of rows, and in `ordered` the same in the order of pairs, where that pays.
template <class C>
struct Parameters {
  const C *weight, *bias;
  bool has_order = false;
  const C *weight_in_order = nullptr, *bias_in_order = nullptr;
};

// By value: behind a reference, every store might change the pointers and statistics.
// Streams are of one row.
template <Centring centring, class L, bool weighted, bool biased, class C, class T, class Out, int R>
void write_rows(const Work<C, T, Out, R> rows, const C* weight, const C* bias, int64_t n, bool streamed) {
  using V = Vector<L>;
  for_each_position<L>(n, [&](auto at) {
    if constexpr (R == 1) {
      if (rows.x_ahead) fetch(rows.x[0] + at.i + rows.x_ahead);
      if (rows.x_ahead && !streamed) fetch_to_write(rows.y[0] + at.i + rows.y_ahead);
    }
    V w{}, b{};
    if constexpr (weighted) w = at.load(weight);
    if constexpr (biased) b = at.load(bias);
    V v[R];
    for (int r = 0; r < R; ++r) {
      v[r] = centred<centring>(at, rows.x[r], rows.statistics[r]) * rows.statistics[r].reciprocal;
      if constexpr (weighted) v[r] = v[r] * w;
      if constexpr (biased) v[r] = v[r] + b;
    }
    // every load stands before the first store: a load waits for an earlier store to the same place in a page of 4 KB
    for (int r = 0; r < R; ++r) at.store(rows.y[r], v[r]);
  }, streamed, head_of(rows.y[0], n, streamed));
}

template <Centring centring, class L, class C, class T, class Out, int R>
void write_rows(const Work<C, T, Out, R>& rows, const C* weight, const C* bias, int64_t n, bool streamed) {
  if (weight && bias) return write_rows<centring, L, true, true>(rows, weight, bias, n, streamed);
  if (weight) return write_rows<centring, L, true, false>(rows, weight, bias, n, streamed);
  if (bias) return write_rows<centring, L, false, true>(rows, weight, bias, n, streamed);
  write_rows<centring, L, false, false>(rows, weight, bias, n, streamed);
}

template <Centring centring, class C, class T, class Out, int R>
void write_rows(const Work<C, T, Out, R>& rows, const Parameters<C>& p, int64_t n, bool streamed) {
  if constexpr (std::is_same_v<T, Out> && is_written_in_order<T>) {
    if (p.has_order && head_of(rows.y[0], n, streamed) == 0) {
      return write_rows<centring, pair>(rows, p.weight_in_order, p.bias_in_order, n, streamed);
    }
  }
  write_rows<centring, typename Written<T>::lanes>(rows, p.weight, p.bias, n, streamed);
}

template <class C, class T, class Out>
void write_row(const RowsSpec& spec, const Work<C, T, Out, 1>& row, const Parameters<C>& parameters,
               bool streamed = false) {
  with_centring(spec, row.statistics[0],
                [&](auto centring) { write_rows<centring.value>(row, parameters, spec.features, streamed); });
}

// Writes x + residual to sum and returns the row to normalize. A sum that goes past the caches is kept in scratch too.
template <class C, class R>
const C* add_row(const C* x, const R* residual, R* sum, bool rounded, bool streamed, int64_t n, C* scratch) {
  if constexpr (std::is_same_v<R, C>) {
    if (!streamed) {
      for_each_position<C>(n, [&](auto at) { at.store(sum, at.load(x) + at.load(residual)); });
      return sum;
    }
    for_each_position<C>(n, [&](auto at) {
      const auto total = at.load(x) + at.load(residual);
      at.store(sum, total);
      store_near(at, scratch, total);
    }, true, elements_to_line(sum));
  } else {
    for_each_position<C>(n, [&](auto at) {
      const auto total = at.load(x) + at.load(residual);
      at.store(sum, total);
      at.store(scratch, rounded ? at.load(sum) : total);
    });
  }
  return scratch;
}

template <class C>
const C* add_row(const RowsForward& a, const C* x, int64_t row, C* scratch) {
  return with_row<C>(a.sum, row, [&](auto* sum) {
    const auto* residual = static_cast<decltype(sum)>(a.residual.data) + row_offset(a.residual.layout, row);
    const bool streamed = a.streamed && reaches_a_line(sum);
    return add_row(x, residual, sum, a.spec.options.rounded, streamed, a.spec.features, scratch);
  });
}

__attribute__((noinline)) Statistics<float> forward_row_in_double(const RowsForward& a, const float* x, int64_t row) {
  const int64_t n = a.spec.features, stride = padded(n);
  const Buffer<double> rows(4 * stride);
  double* scratch = rows.data();
  const double* wide = in_double(x, scratch, n);
  const double* weight = in_double(static_cast<const float*>(a.weight), scratch + stride, n);
  const double* bias = in_double(static_cast<const float*>(a.bias), scratch + 2 * stride, n);
  const Statistics<double> s = measure<double>(wide, a.spec);
  double* out = scratch + 3 * stride;
  if (a.spec.options.early) {
    const Buffer<float> normalized(stride);
    for (int64_t i = 0; i < n; ++i) normalized.data()[i] = static_cast<float>(wide[i] * s.reciprocal);
    with_row<float>(a.y, row, [&](auto* y) { write_row_early(a, normalized.data(), 1.0f, y); });
  } else {
    write_row(a.spec, Work<double, double, double, 1>{{wide}, {out}, {s}}, {weight, bias});
    with_row<float>(a.y, row, [&](auto* y) { narrow(y, out, n); });
  }
  return {static_cast<float>(s.mean), static_cast<float>(s.mean - static_cast<float>(s.mean)),
          static_cast<float>(s.reciprocal), static_cast<float>(s.bend)};
}

inline Statistics<double> measure_row(const RowsForward& a, const double* x, int64_t) {
  return measure<double>(x, a.spec);
}
inline Statistics<float> measure_row(const RowsForward& a, const float* x, int64_t row) {
  const RowsOptions& options = a.spec.options;
  if (options.early) {
    return {0, 0, 1.0f / std::sqrt(mean_square_as_torch(x, a.spec.features) + static_cast<float>(options.eps)), 1};
  }
  // the bits of adding first: a row of bfloat16 is summed in another order than one of float
  if (a.residual.data && options.rounded && a.x.dtype == DType::bfloat16 && a.sum.dtype == DType::bfloat16) {
    return measure<float>(static_cast<const bf16*>(a.sum.data) + row_offset(a.sum.layout, row), a.spec);
  }
  return measure<float>(x, a.spec);
}

// One row from x (in the compute dtype) to y; returns its statistics.
template <class C>
Statistics<C> forward_row(const RowsForward& a, const C* x, int64_t row) {
  const Statistics<C> s = measure_row(a, x, row);
  if constexpr (std::is_same_v<C, float>) {
    if (!safe(s)) return forward_row_in_double(a, x, row);
  }
  with_row<C>(a.y, row, [&](auto* y) {
    if constexpr (std::is_same_v<C, float>) {
      if (a.spec.options.early) return write_row_early(a, x, s.reciprocal, y);
    }
    const Work<C, C, std::remove_pointer_t<decltype(y)>, 1> work{{x}, {y}, {s}};
    const Parameters<C> parameters{static_cast<const C*>(a.weight), static_cast<const C*>(a.bias)};
    write_row(a.spec, work, parameters, a.streamed && reaches_a_line(y));
  });
  return s;
}

// With a residual or early rounding, a row at a time.
template <class C>
void forward_special(const RowsForward& a, int64_t begin, int64_t end) {
  const int64_t n = a.spec.features;
  const int width = a.spec.statistics_width();
  C* saved = static_cast<C*>(a.statistics);
  const Buffer<C> scratch(padded(n));
  for (int64_t row = begin; row < end; ++row) {
    const C* x = row_of(a.x, row, n, scratch.data());
    if (a.residual.data) x = add_row(a, x, row, scratch.data());
    const Statistics<C> s = forward_row(a, x, row);
    if (saved) save(s, a.spec, saved + row * width);
  }
}

template <class T>
__attribute__((noinline)) Statistics<float> widen_and_do_in_double(const RowsForward& a, const T* x, int64_t row) {
  const Buffer<float> wide(padded(a.spec.features));
  return forward_row_in_double(a, widen(x, wide.data(), a.spec.features), row);
}

// Writes a row of which the statistics are known; the one that is fetched meanwhile is `later` rows further.
template <class C, class T>
inline void complete_row(const RowsForward& a, const T* x, Statistics<C> s, const Parameters<C>& parameters, int64_t row,
                         int64_t later, LineWriter<T>& lines) {
  bool done = false;
  if constexpr (std::is_same_v<C, float>) {
    if (!safe(s)) {
      s = widen_and_do_in_double(a, x, row);
      done = true;
    }
  }
  if (!done) {
    T* y = static_cast<T*>(a.y.data) + row_offset(a.y.layout, row);
    Work<C, T, T, 1> work{{x}, {lines ? lines.place(y) : y}, {s}};
    if (a.fetched) {
      work.x_ahead = distance_to(a.x, row, later);
      work.y_ahead = distance_to(a.y, row, later);
    }
    write_row(a.spec, work, parameters, a.streamed && !lines && reaches_a_line(y));
    if (lines) lines.add(a.spec.features);
  }
  if (a.statistics) save(s, a.spec, static_cast<C*>(a.statistics) + row * a.spec.statistics_width());
}

// Writes R rows at once, which then load the parameters once, where all are of the usual kind.
template <int R, class C, class T>
bool complete_rows(const RowsForward& a, const T* const* x, const Group<C>& s, const Parameters<C>& parameters,
                   int first, int64_t row) {
  Work<C, T, T, R> rows;
  const Centring usual = a.spec.center() ? Centring::rounded : Centring::none;
  for (int r = 0; r < R; ++r) {
    rows.statistics[r] = s[first + r];
    if (!safe(rows.statistics[r]) || centring_of(a.spec, rows.statistics[r]) != usual) return false;
    rows.x[r] = x[first + r];
    rows.y[r] = static_cast<T*>(a.y.data) + row_offset(a.y.layout, row + r);
  }
  if (usual == Centring::none) {
    write_rows<Centring::none>(rows, parameters, a.spec.features, false);
  } else {
    write_rows<Centring::rounded>(rows, parameters, a.spec.features, false);
  }
  if (!a.statistics) return true;
  const int width = a.spec.statistics_width();
  for (int r = 0; r < R; ++r) save(rows.statistics[r], a.spec, static_cast<C*>(a.statistics) + (row + r) * width);
  return true;
}

// How many rows are measured and then written: as many as stay in the first-level cache in between.
template <class T>
int group_size(const RowsForward& a) {
  const int64_t fitting = a.group_bytes / (a.spec.features * static_cast<int64_t>(sizeof(T)));
  return fitting >= most_in_group ? most_in_group : fitting >= 4 ? 4 : fitting >= 2 ? 2 : 1;
}

// The other instruction sets have too few registers, and more rows than two of a page's length meet in the cache. Rows
// that are not whole cache lines lie differently on these: one by one, all stores but a row's first and last are whole.
template <class T>
int rows_abreast(const RowsForward& a) {
#if defined(__AVX512F__)
  const int64_t bytes = a.spec.features * static_cast<int64_t>(sizeof(T));
  const bool lines = sizeof(T) < 4 || bytes % cache_line == 0;
  if (!a.streamed && !a.fetched && lines) return bytes <= 3584 ? 4 : 2;
#endif
  return 1;
}

constexpr int64_t worth_ordering = 8;  // rows, for which the parameters are ordered

template <class T>
void forward_plain(const RowsForward& a, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  const int size = group_size<T>(a), most = rows_abreast<T>(a);
  const int64_t n = a.spec.features;
  Parameters<C> parameters{static_cast<const C*>(a.weight), static_cast<const C*>(a.bias)};
  const bool has_order = is_written_in_order<T> && end - begin >= worth_ordering;
  const Buffer<C> scratch(has_order ? 2 * padded_pairs(n) : 0);
  if (has_order) {
    parameters = {parameters.weight, parameters.bias, true, in_order<pair>(parameters.weight, scratch.data(), n),
                  in_order<pair>(parameters.bias, scratch.data() + padded_pairs(n), n)};
  }
  LineWriter<T> lines(a.y.data, n, a.streamed);
  for (int64_t row = begin; row < end; row += size) {
    const int count = static_cast<int>(row + size < end ? size : end - row);
    const T* x[most_in_group];
    for (int i = 0; i < count; ++i) x[i] = static_cast<const T*>(a.x.data) + row_offset(a.x.layout, row + i);
    const Group<C> s = measure<C>(x, count, a.spec);
    for (int i = 0; i < count;) {
      if (most == 4 && i + 4 <= count && complete_rows<4>(a, x, s, parameters, i, row + i)) {
        i += 4;
      } else if (most >= 2 && i + 2 <= count && complete_rows<2>(a, x, s, parameters, i, row + i)) {
        i += 2;
      } else {
        complete_row(a, x[i], s[i], parameters, row + i, size, lines);
        ++i;
      }
    }
  }
}

}  // namespace

void forward_rows(const RowsForward& a, int64_t begin, int64_t end) {
  if (begin == end) return;
  if (a.spec.options.early || a.residual.data) {
    a.is_double ? forward_special<double>(a, begin, end) : forward_special<float>(a, begin, end);
  } else {
    with_floating(a.x.dtype, [&](auto t) { forward_plain<decltype(t)>(a, begin, end); });
  }
  if (a.streamed) finish_streams();
}

}  // namespace evenkeel::EVENKEEL_ISA
