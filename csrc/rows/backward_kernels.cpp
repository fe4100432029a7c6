// The backward of the row pattern.
#include "rows/few_rows.h"
#include "rows/parameter_sums.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// A row in the compute dtype.
template <class C>
struct BackwardRow {
  const C *x, *dy, *weight, *dsum;
  Statistics<C> statistics;
};

// The second pass of one row in the compute dtype, which adds what flows back along the sum. The row comes by value:
// behind a reference, every store might change its pointers and statistics.
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
  BackwardGroup<1, C, C> rows{{r.x}, {r.dy}, {}};
  rows.set_statistics(0, r.statistics);
  GradientSums<1> sums;
  with_centring(a, r.statistics, [&](auto centring) {
    r.weight ? sum_rows<1, centring.value, true, 2>(a.spec.features, rows, 0, r.weight, dweight, dbias, sums)
             : sum_rows<1, centring.value, false, 2>(a.spec.features, rows, 0, r.weight, dweight, dbias, sums);
    take_slopes<centring.value>(a.spec, sums, rows);
  });
  return {rows.shift[0], rows.along[0]};
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
void write_gradients(const RowsBackward& a, const BackwardRow<C>& r, const Slopes<C>& slopes, int64_t row, C* scratch,
                     LineWriter& lines) {
  if constexpr (std::is_same_v<C, float>) {
    if (a.dresidual.data) {
      write_gradient(a, r, slopes, scratch);
      round_row(a.dresidual, row, scratch, a.spec.features);
      if (a.dx.data) round_row(a.dx, row, scratch, a.spec.features);
      return;
    }
  }
  if (!a.dx.data) return;
  with_row<C>(a.dx, row, [&](auto* dx) {
    if (!lines) return write_gradient(a, r, slopes, dx, a.streamed && reaches_a_line(dx));
    write_gradient(a, r, slopes, lines.place(dx));
    lines.add(a.spec.features * sizeof(*dx));
  });
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
void backward_row(const RowsBackward& a, int64_t row, ParameterSums<L, C>& sums, C* scratch, LineWriter& lines) {
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
  write_gradients(a, r, slopes, row, scratch + 3 * stride, lines);
}

#if defined(__AVX512F__)
constexpr bool has_many_registers = true;
#else
constexpr bool has_many_registers = false;
#endif

// Whether two rows at a time gain by sharing the parameters and their sums: long rows push these out of the first-level
// cache, and pairs load much for one row.
template <class T>
inline bool gains_by_sharing(int64_t n) {
  return n > 2048 || std::is_same_v<typename Summed<T>::lanes, pair>;
}
inline bool come_from_memory(const RowsBackward& a) {
  return a.streamed || a.group_bytes == 0 || (has_many_registers && a.fetched);
}
// Of short ones several take their slopes in the time of one.
template <class T>
inline bool are_short_from_memory(const RowsBackward& a) {
  constexpr int64_t longest = has_many_registers ? 512 / sizeof(T) : 128;  // elements
  return come_from_memory(a) && a.spec.features <= longest;
}
// Whether the rows of a group go two at a time. With AVX-512 memory feeds short ones best one by one.
template <class T>
inline bool goes_by_twos(const RowsBackward& a) {
  return has_many_registers ? !are_short_from_memory<T>(a) : gains_by_sharing<T>(a.spec.features);
}

// The second pass over a group, of one row, or two rows at a time.
template <Centring centring, bool weighted, bool summed, int most, class C, class T>
void write_group(const RowsBackward& a, BackwardGroup<most, C, T>& rows, int count, LineWriter& lines) {
  constexpr int two = most > 1 ? 2 : 1;
  const int64_t n = a.spec.features;
  const C* weight = static_cast<const C*>(a.weight);
  int i = 0;
  const bool has_whole_stores = sizeof(T) < 4 || n * sizeof(T) % cache_line == 0;  // others have them one by one alone
  if (has_whole_stores && goes_by_twos<T>(a)) {
    for (; i + 2 <= count; i += 2) write_rows<two, centring, weighted, summed>(n, rows, i, weight, false);
  }
  for (; i < count; ++i) {
    if (lines) rows.dx[i] = lines.place(rows.dx[i]);
    const bool streamed = a.streamed && !lines && reaches_a_line(rows.dx[i]);
    write_rows<1, centring, weighted, summed>(n, rows, i, weight, streamed);
    if (lines) lines.add(n * sizeof(T));
  }
}

// Both passes over a group.
template <Centring centring, bool weighted, class L, int most, class C, class T>
void run_group(const RowsBackward& a, BackwardGroup<most, C, T>& rows, int count, const C* weight_in_order,
               const ParameterSums<L, C>& parameters, LineWriter& lines) {
  constexpr int two = most > 1 ? 2 : 1;
  const int64_t n = a.spec.features;
  C *const dweight = parameters.dweight(), *const dbias = parameters.dbias();
  if (!a.dx.data) {
    int i = 0;
    if constexpr (most >= 4) {
      for (; !are_short_from_memory<T>(a) && i + 4 <= count; i += 4) {
        sum_parameters<4, centring>(n, rows, i, dweight, dbias);
      }
    }
    for (; i < count; ++i) sum_parameters<1, centring>(n, rows, i, dweight, dbias);
    return;
  }
  GradientSums<most> sums;
  if constexpr (most > 1) {
    for (int i = count; i < most; ++i) sums.g[i] = sums.product[i] = Doubles{};
  }
  int i = 0;
  for (; goes_by_twos<T>(a) && i + two <= count; i += two) {
    sum_rows<two, centring, weighted, 1>(n, rows, i, weight_in_order, dweight, dbias, sums);
  }
  for (; i < count; ++i) sum_rows<1, centring, weighted, 1>(n, rows, i, weight_in_order, dweight, dbias, sums);
  take_slopes<centring>(a.spec, sums, rows);
  a.dsum.data ? write_group<centring, weighted, true>(a, rows, count, lines)
              : write_group<centring, weighted, false>(a, rows, count, lines);
}

// Where plain rows lie, and what is fetched while they are written.
template <class T>
struct PlainRows {
  explicit PlainRows(const RowsBackward& a)
      : x(a.x), dy(a.dy), dx(a.dx), dsum(a.dsum), later(a.fetched ? ceil_divide(soon, a.spec.features) : 0) {}
  static constexpr int64_t soon = 4096 / sizeof(T);  // elements
  const RowPlaces<T> x, dy, dx, dsum;
  const int64_t later;  // rows, or 0: nothing is fetched
};

// Takes rows from `row` on, up to `count` of them and to the first that is not of the usual kind; returns how many.
template <class T, int most, class L, class C>
int backward_group(const RowsBackward& a, const PlainRows<T>& plain, int64_t row, int count, const C* weight_in_order,
                   const ParameterSums<L, C>& sums, LineWriter& lines) {
  BackwardGroup<most, C, T> rows;
  const Centring usual = a.spec.center() ? Centring::rounded : Centring::none;
  const int width = a.spec.statistics_width();
  for (int r = 0; r < count; ++r) {
    const Statistics<C> s = restore(a.spec, static_cast<const C*>(a.statistics) + (row + r) * width);
    if (!safe(s) || centring_of(a.spec, s) != usual) {
      count = r;
      break;
    }
    rows.set_statistics(r, s);
    rows.x[r] = plain.x[row + r];
    rows.dy[r] = plain.dy[row + r];
    rows.dx[r] = plain.dx[row + r];
    rows.dsum[r] = plain.dsum[row + r];
  }
  if (count == 0) return 0;
  if (plain.later) {
    const int64_t then = row + std::max<int64_t>(count, plain.later);
    rows.x_ahead = plain.x[then] - rows.x[0];
    rows.dy_ahead = plain.dy[then] - rows.dy[0];
    rows.dx_ahead = plain.dx[then] - rows.dx[0];
    rows.dsum_ahead = plain.dsum[then] - rows.dsum[0];
  }
  const auto run = [&](auto centring) {
    constexpr Centring kind = decltype(centring)::value;
    a.weight && a.dx.data ? run_group<kind, true>(a, rows, count, weight_in_order, sums, lines)
             : run_group<kind, false>(a, rows, count, weight_in_order, sums, lines);
  };
  usual == Centring::none ? run(std::integral_constant<Centring, Centring::none>{})
                          : run(std::integral_constant<Centring, Centring::rounded>{});
  return count;
}

// How many rows are summed and then written: of long ones from memory one is best, or two that gain by sharing.
template <class T>
int group_size(const RowsBackward& a) {
  if (!a.dx.data) return most_in_group;  // each goes through them once
  if (are_short_from_memory<T>(a)) return has_many_registers ? 4 : most_in_group;
  const int64_t n = a.spec.features;
  const int64_t staying = come_from_memory(a) ? 0 : a.group_bytes / (2 * n * static_cast<int64_t>(sizeof(T)));
  if (staying >= 4) return staying >= most_in_group ? most_in_group : 4;
  return !a.streamed && gains_by_sharing<T>(n) ? 2 : 1;
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
  LineWriter lines(a.dx.data, n * size_of(a.dx.dtype), size_of(a.dx.dtype), a.streamed && !a.dresidual.data);
  const C* weight = in_order<L>(static_cast<const C*>(a.weight), parameter.data(), n);
  const int64_t first = task * a.rows_per_task;
  const int64_t last = first + a.rows_per_task < a.spec.rows ? first + a.rows_per_task : a.spec.rows;
  const int size = group_size<T>(a);
  const PlainRows<T> rows(a);
  for (int64_t row = first; row < last;) {
    const int64_t until = row + rows_per_flush < last ? row + rows_per_flush : last;
    sums.start();
    while (row < until) {
      const int count = static_cast<int>(row + size < until ? size : until - row);
      int done = 0;
      if (plain) {
        done = size > 1 ? backward_group<T, most_in_group>(a, rows, row, count, weight, sums, lines)
                        : backward_group<T, 1>(a, rows, row, count, weight, sums, lines);
      }
      if (done == 0) {
        const Buffer<C> rare(plain ? 4 * stride : 0);
        backward_row(a, row, sums, plain ? rare.data() : scratch.data(), lines);
        done = 1;
      }
      row += done;
    }
    sums.flush();
  }
}

}  // namespace

bool few_slopes(const RowsBackward& a, void* slopes, int64_t begin, int64_t end) {
  bool usual = false;
  with_floating(a.x.dtype, [&](auto t) { usual = FewRows<decltype(t)>(a, slopes).find_slopes(begin, end); });
  return usual;
}

void few_blocks(const RowsBackward& a, void* slopes, const Values& dweight, const Values& dbias, int64_t begin,
                int64_t end) {
  with_floating(a.x.dtype, [&](auto t) {
    for (int64_t block = begin; block < end; ++block) FewRows<decltype(t)>(a, slopes).write(block, dweight, dbias);
  });
}

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
