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

// A group's rows and where they go.
template <class C, class T, class Out>
struct Work {
  const T* x[most_in_group];
  Out* y[most_in_group];
  Group<C> statistics;
  int64_t x_ahead = 0, y_ahead = 0;  // elements to what is fetched meanwhile, of one row
};

// The parameters of rows, and in `ordered` the same in the order of pairs, where that pays.
template <class C>
struct Parameters {
  const C *weight, *bias;
  bool has_order = false;
  const C *weight_in_order = nullptr, *bias_in_order = nullptr;
};

// Writes R rows of a group, from one on. Streams are of one row.
template <int R, Centring centring, class L, bool weighted, bool biased, class C, class T, class Out>
void write_rows(const Work<C, T, Out>& work, int first, const C* weight, const C* bias, int64_t n, bool streamed) {
  using V = Vector<L>;
  // Copied: every store might change the pointers and statistics. An argument by value would be copied as a whole, which
  // has to wait for the pieces that were written last.
  const T* x[R];
  Out* y[R];
  Statistics<C> s[R];
  const int64_t x_ahead = work.x_ahead, y_ahead = work.y_ahead;
  for (int r = 0; r < R; ++r) {
    x[r] = work.x[first + r];
    y[r] = work.y[first + r];
    s[r] = work.statistics[first + r];
  }
  for_each_position<L>(n, [&](auto at) {
    if constexpr (R == 1) {
      if (x_ahead) fetch(x[0] + at.i + x_ahead);
      if (x_ahead && !streamed) fetch_to_write(y[0] + at.i + y_ahead);
    }
    V w{}, b{};
    if constexpr (weighted) w = at.load(weight);
    if constexpr (biased) b = at.load(bias);
    V v[R];
    for (int r = 0; r < R; ++r) {
      v[r] = centred<centring>(at, x[r], s[r]) * s[r].reciprocal;
      if constexpr (weighted) v[r] = v[r] * w;
      if constexpr (biased) v[r] = v[r] + b;
    }
    // every load stands before the first store: a load waits for an earlier store to the same place in a page of 4 KB
    for (int r = 0; r < R; ++r) at.store(y[r], v[r]);
  }, streamed, head_of(y[0], n, streamed));
}

template <int R, Centring centring, class L, class C, class T, class Out>
void write_rows(const Work<C, T, Out>& rows, int first, const C* weight, const C* bias, int64_t n, bool streamed) {
  if (weight && bias) return write_rows<R, centring, L, true, true>(rows, first, weight, bias, n, streamed);
  if (weight) return write_rows<R, centring, L, true, false>(rows, first, weight, bias, n, streamed);
  if (bias) return write_rows<R, centring, L, false, true>(rows, first, weight, bias, n, streamed);
  write_rows<R, centring, L, false, false>(rows, first, weight, bias, n, streamed);
}

template <int R, Centring centring, class C, class T, class Out>
void write_rows(const Work<C, T, Out>& rows, int first, const Parameters<C>& p, int64_t n, bool streamed) {
  if constexpr (std::is_same_v<T, Out> && is_written_in_order<T>) {
    if (p.has_order && head_of(rows.y[first], n, streamed) == 0) {
      return write_rows<R, centring, pair>(rows, first, p.weight_in_order, p.bias_in_order, n, streamed);
    }
  }
  write_rows<R, centring, typename Written<T>::lanes>(rows, first, p.weight, p.bias, n, streamed);
}

template <class C, class T, class Out>
void write_row(const RowsSpec& spec, const Work<C, T, Out>& work, int i, const Parameters<C>& parameters,
               bool streamed = false) {
  with_centring(spec, work.statistics[i],
                [&](auto centring) { write_rows<1, centring.value>(work, i, parameters, spec.features, streamed); });
}

// Writes x + residual to sum and returns the row to normalize: the sum itself, or what is in scratch. A sum that goes
// past the caches is kept there too.
template <class T, class X, class R>
const T* add_row(const X* x, const R* residual, R* sum, bool rounded, bool streamed, LineWriter& lines, int64_t n,
                 T* scratch) {
  if constexpr (std::is_same_v<T, R>) {
    using L = std::conditional_t<std::is_same_v<X, R>, typename Written<R>::lanes, Opmath<R>>;
    if (!streamed) {
      for_each_position<L>(n, [&](auto at) { at.store(sum, at.load(x) + at.load(residual)); });
      return sum;
    }
    R* const out = lines ? lines.place(sum) : sum;
    for_each_position<L>(n, [&](auto at) {
      const auto total = at.load(x) + at.load(residual);
      at.store(out, total);
      store_near(at, scratch, total);
    }, !lines, lines ? 0 : elements_to_line(sum));
    if (lines) lines.add(n * sizeof(R));
  } else {
    for_each_position<T>(n, [&](auto at) {
      const auto total = at.load(x) + at.load(residual);
      at.store(sum, total);
      at.store(scratch, rounded ? at.load(sum) : total);
    });
  }
  return scratch;
}

// The rows of x as they lie.
template <class T>
struct RowsAsGiven {
  const RowPlaces<T> x;
  const T* row(int64_t row, T*) const { return x[row]; }
};

// The rows of x + residual, which are written to a sum of R on the way.
template <class T, class R>
struct RowsAdded {
  const RowsForward& a;
  LineWriter& lines;
  const T* row(int64_t row, T* scratch) const {
    const int64_t n = a.spec.features;
    const R* residual = row_at<R>(a.residual, row);
    R* const sum = row_at<R>(a.sum, row);
    const bool rounded = a.spec.options.rounded, streamed = a.streamed && reaches_a_line(sum);
    if (a.x.dtype == a.sum.dtype) {
      return add_row(row_at<R>(a.x, row), residual, sum, rounded, streamed, lines, n, scratch);
    }
    if constexpr (std::is_same_v<T, float>) {
      return add_row(row_of(a.x, row, n, scratch), residual, sum, rounded, streamed, lines, n, scratch);
    }
    __builtin_unreachable();
  }
};

__attribute__((noinline)) Statistics<float> forward_row_in_double(const RowsForward& a, const float* x, int64_t row) {
  const int64_t n = a.spec.features, stride = padded(n);
  const Buffer<double> rows(4 * stride);
  double* scratch = rows.data();
  const double* wide = in_double(x, scratch, n);
  const double* weight = in_double(static_cast<const float*>(a.weight), scratch + stride, n);
  const double* bias = in_double(static_cast<const float*>(a.bias), scratch + 2 * stride, n);
  Work<double, double, double> work{{wide}, {scratch + 3 * stride}, measure<double>(&wide, 1, a.spec)};
  const Statistics<double> s = work.statistics[0];
  if (a.spec.options.early) {
    const Buffer<float> normalized(stride);
    for (int64_t i = 0; i < n; ++i) normalized.data()[i] = static_cast<float>(wide[i] * s.reciprocal);
    with_row<float>(a.y, row, [&](auto* y) { write_row_early(a, normalized.data(), 1.0f, y); });
  } else {
    write_row(a.spec, work, 0, {weight, bias});
    with_row<float>(a.y, row, [&](auto* y) { narrow(y, work.y[0], n); });
  }
  return {static_cast<float>(s.mean), static_cast<float>(s.mean - static_cast<float>(s.mean)),
          static_cast<float>(s.reciprocal), static_cast<float>(s.bend)};
}

// With early rounding, a row at a time.
void forward_early(const RowsForward& a, int64_t begin, int64_t end) {
  const int64_t n = a.spec.features;
  const float eps = static_cast<float>(a.spec.options.eps);
  float* saved = static_cast<float*>(a.statistics);
  const Buffer<float> scratch(padded(n));
  for (int64_t row = begin; row < end; ++row) {
    const float* x = row_of(a.x, row, n, scratch.data());
    Statistics<float> s{0, 0, 1.0f / std::sqrt(mean_square_as_torch(x, n) + eps), 1};
    if (safe(s)) {
      with_row<float>(a.y, row, [&](auto* y) { write_row_early(a, x, s.reciprocal, y); });
    } else {
      s = forward_row_in_double(a, x, row);
    }
    if (saved) save(s, a.spec, saved + row * a.spec.statistics_width());
  }
}

template <class T>
__attribute__((noinline)) Statistics<float> widen_and_do_in_double(const RowsForward& a, const T* x, int64_t row) {
  const Buffer<float> wide(padded(a.spec.features));
  return forward_row_in_double(a, widen(x, wide.data(), a.spec.features), row);
}

// Writes row i of a group; the one that is fetched meanwhile is `later` rows further.
template <class C, class T, class Out>
inline void complete_row(const RowsForward& a, Work<C, T, Out>& work, int i, const Parameters<C>& parameters, int64_t row,
                         int64_t later, LineWriter& lines) {
  Statistics<C> s = work.statistics[i];
  bool done = false;
  if constexpr (std::is_same_v<C, float>) {
    if (!safe(s)) {
      s = widen_and_do_in_double(a, work.x[i], row);
      done = true;
    }
  }
  if (!done) {
    const bool streamed = a.streamed && !lines && reaches_a_line(work.y[i]);
    if (lines) work.y[i] = lines.place(work.y[i]);
    if (a.fetched && !a.residual.data) {
      work.x_ahead = distance_to(a.x, row, later);
      work.y_ahead = distance_to(a.y, row, later);
    }
    write_row(a.spec, work, i, parameters, streamed);
    if (lines) lines.add(a.spec.features * sizeof(Out));
  }
  if (a.statistics) save(s, a.spec, static_cast<C*>(a.statistics) + row * a.spec.statistics_width());
}

// Writes R rows at once, which then load the parameters once, where all are of the usual kind.
template <int R, class C, class T, class Out>
bool complete_rows(const RowsForward& a, const Work<C, T, Out>& work, int first, const Parameters<C>& parameters,
                   int64_t row) {
  const Centring usual = a.spec.center() ? Centring::rounded : Centring::none;
  for (int i = first; i < first + R; ++i) {
    const Statistics<C> s = work.statistics[i];
    if (!safe(s) || centring_of(a.spec, s) != usual) return false;
  }
  if (usual == Centring::none) {
    write_rows<R, Centring::none>(work, first, parameters, a.spec.features, false);
  } else {
    write_rows<R, Centring::rounded>(work, first, parameters, a.spec.features, false);
  }
  if (!a.statistics) return true;
  const int width = a.spec.statistics_width();
  for (int r = 0; r < R; ++r) save(work.statistics[first + r], a.spec, static_cast<C*>(a.statistics) + (row + r) * width);
  return true;
}

// How many rows are measured and then written: as many as stay in the first-level cache in between.
template <class T>
int group_size(const RowsForward& a) {
  const int64_t tensors = a.residual.data ? 2 : 1;
  const int64_t fitting = a.group_bytes / (a.spec.features * tensors * static_cast<int64_t>(sizeof(T)));
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

// Rows of T, of x or of its sum with a residual, to rows of Out.
template <class T, class Out, class Source>
void forward_groups(const RowsForward& a, const Source& source, int64_t begin, int64_t end) {
  using C = Opmath<T>;
  constexpr bool same = std::is_same_v<T, Out>;
  const int size = group_size<T>(a), most = same ? rows_abreast<T>(a) : 1;
  const int64_t n = a.spec.features, stride = padded_pairs(n);
  Parameters<C> parameters{static_cast<const C*>(a.weight), static_cast<const C*>(a.bias)};
  const bool has_order = same && is_written_in_order<T> && end - begin >= worth_ordering;
  const Buffer<C> ordered(has_order ? 2 * stride : 0);
  if (has_order) {
    parameters = {parameters.weight, parameters.bias, true, in_order<pair>(parameters.weight, ordered.data(), n),
                  in_order<pair>(parameters.bias, ordered.data() + stride, n)};
  }
  const Buffer<T> scratch(a.residual.data ? size * stride : 0);
  const RowPlaces<Out> y(a.y);
  LineWriter lines(a.y.data, n * sizeof(Out), sizeof(Out), a.streamed);
  for (int64_t row = begin; row < end; row += size) {
    const int count = static_cast<int>(row + size < end ? size : end - row);
    Work<C, T, Out> work;
    for (int i = 0; i < count; ++i) {
      work.x[i] = source.row(row + i, scratch.data() + i * stride);
      work.y[i] = y[row + i];
    }
    work.statistics = measure<C>(work.x, count, a.spec);
    for (int i = 0; i < count;) {
      if constexpr (same) {
        if (most == 4 && i + 4 <= count && complete_rows<4>(a, work, i, parameters, row + i)) {
          i += 4;
          continue;
        }
        if (most >= 2 && i + 2 <= count && complete_rows<2>(a, work, i, parameters, row + i)) {
          i += 2;
          continue;
        }
      }
      complete_row(a, work, i, parameters, row + i, size, lines);
      ++i;
    }
  }
}

// The sum is normalized as it was rounded, where it is of x's dtype, or else in float.
template <class R>
void forward_added(const RowsForward& a, int64_t begin, int64_t end) {
  const bool as_rounded = a.spec.options.rounded || std::is_same_v<R, Opmath<R>>;
  LineWriter lines(a.sum.data, a.spec.features * sizeof(R), sizeof(R), a.streamed);
  if (a.x.dtype == a.sum.dtype && as_rounded) {
    forward_groups<R, R>(a, RowsAdded<R, R>{a, lines}, begin, end);
  } else if constexpr (!std::is_same_v<R, double>) {
    with_floating(a.y.dtype, [&](auto t) {
      using Out = decltype(t);
      if constexpr (!std::is_same_v<Out, double>) forward_groups<float, Out>(a, RowsAdded<float, R>{a, lines}, begin, end);
    });
  }
}

}  // namespace

void forward_rows(const RowsForward& a, int64_t begin, int64_t end) {
  if (begin == end) return;
  if (a.spec.options.early && !a.is_double) {
    forward_early(a, begin, end);
  } else if (a.residual.data) {
    with_floating(a.sum.dtype, [&](auto t) { forward_added<decltype(t)>(a, begin, end); });
  } else {
    with_floating(a.x.dtype, [&](auto t) {
      using T = decltype(t);
      forward_groups<T, T>(a, RowsAsGiven<T>{RowPlaces<T>(a.x)}, begin, end);
    });
  }
  if (a.streamed) finish_streams();
}

}  // namespace evenkeel::EVENKEEL_ISA
