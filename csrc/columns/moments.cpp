// The moments of columns: strides, allocation and the division of work; sum_kernels.cpp computes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "columns/kernels.h"
#include "columns/operators.h"

namespace evenkeel {

namespace {

const ColumnSumKernels& kernels() { return EVENKEEL_BEST(column_sum_kernels); }

// Sums of this many columns stay in the second cache.
constexpr int64_t most_columns = 1024;

// Rows that are summed together: a block of columns of a table, or a single column.
struct Stream {
  DType type;
  const char* data;
  int64_t rows, columns, row_stride, column_stride;
  int64_t first;              // the place of its first column in the results
  int64_t fold, item_rows;    // as in ColumnStream
  int64_t piece_rows, pieces;  // a piece is summed by one thread
};

// Divides a stream into items of about 128 K elements, and `streams` of them into about 256 pieces: neither depends on
// the number of threads, nor on how many tables there are.
void divide(Stream& s, int64_t streams) {
  constexpr int64_t item = 131072, pieces = 256;
  s.fold = s.columns <= 64 ? 16 / std::gcd(s.columns, int64_t{16}) : 1;
  s.item_rows = ceil_divide(item, s.columns * s.fold) * s.fold;
  const int64_t items = ceil_divide(s.rows, s.item_rows);
  const int64_t share = std::clamp<int64_t>(pieces / streams, 1, std::max<int64_t>(items, 1));
  s.piece_rows = ceil_divide(items, share) * s.item_rows;
  s.pieces = s.rows ? ceil_divide(s.rows, s.piece_rows) : 0;
}

// The streams of (tables, rows, columns): blocks of columns, or single columns where tables are stored by columns.
std::vector<Stream> streams_of(const Tensor& x) {
  STD_TORCH_CHECK(x.sizes().size() == 3, "evenkeel: expected (tables, rows, columns)");
  const auto sizes = x.sizes(), strides = x.strides();
  const int64_t tables = sizes[0], rows = sizes[1], columns = sizes[2];
  const bool by_columns = columns > 1 && strides[2] != 1 && (strides[1] == 1 || strides[1] < strides[2]);
  const int64_t block = by_columns ? 1 : std::min(columns, most_columns);
  const int64_t blocks = block ? ceil_divide(columns, block) : 0;
  const DType type = dtype_of(x);
  const char* data = static_cast<const char*>(memory_of(x));
  std::vector<Stream> streams;
  streams.reserve(static_cast<size_t>(tables * blocks));
  for (int64_t table = 0; table < tables; ++table) {
    for (int64_t c = 0; c < columns; c += block) {
      const int64_t offset = table * strides[0] + c * strides[2];
      Stream s{type, data + offset * size_of(type), rows, block, strides[1], strides[2], table * columns + c};
      divide(s, by_columns ? 1 : blocks);  // the sums of a single column need little memory, however many pieces
      s.columns = std::min(block, columns - c);
      streams.push_back(s);
    }
  }
  return streams;
}

// Columns with memory of their own. The moments of one do not depend on the others.
std::vector<Stream> streams_of(const std::vector<Tensor>& columns) {
  std::vector<Stream> streams;
  for (const Tensor& x : columns) {
    STD_TORCH_CHECK(x.sizes().size() == 1, "evenkeel: expected columns of shape (rows)");
    const int64_t first = static_cast<int64_t>(streams.size());
    Stream s{dtype_of(x), static_cast<const char*>(memory_of(x)), x.sizes()[0], 1, x.strides()[0], 1, first};
    divide(s, 1);
    streams.push_back(s);
  }
  return streams;
}

class Moments {
 public:
  // weights: null, or a float64 one for each row
  Moments(std::vector<Stream> streams, const Tensor* weights)
      : streams_(std::move(streams)),
        weighted_(weights != nullptr),
        weight_(weights ? static_cast<const double*>(memory_of(*weights)) : nullptr) {
    int64_t columns = 0, sums = 0;
    for (const Stream& s : streams_) {
      columns += s.columns;
      sums_at_.push_back(sums);
      sums += std::max<int64_t>(s.pieces, 1) * sums_count * s.columns;
      selected_.push_back(static_cast<int64_t>(selected_.size()));
    }
    shift_.resize(static_cast<size_t>(columns));
    sums_.resize(static_cast<size_t>(sums));
  }

  // The moments, in tensors of a shape that has an element for each column.
  ColumnMoments compute(const std::vector<int64_t>& shape) {
    find_shifts();
    sum();
    if (improve_shifts()) sum();
    const auto numbers = [&] { return empty(shape, ScalarType::Double); };
    const auto counts = [&] { return empty(shape, ScalarType::Long); };
    ColumnMoments results{weighted_ ? numbers() : counts(), numbers(), numbers(), numbers(), numbers(),
                          counts(), counts(), numbers()};
    write(results);
    return results;
  }

 private:
  struct Sums {
    double count, first, second, minimum, maximum, missing, infinite;
  };
  struct Result {
    double mean, mean_low, m2;
  };

  void find_shifts() {
    over(static_cast<int64_t>(streams_.size()), 64 * most([](const Stream& s) { return s.columns; }), [&](int64_t i) {
      if (streams_[i].rows) kernels().find_shift(kernel_stream(i), &shift_[streams_[i].first]);
    });
  }

  void sum() {
    std::vector<std::pair<int64_t, int64_t>> tasks;
    for (const int64_t i : selected_) {
      for (int64_t piece = 0; piece < streams_[i].pieces; ++piece) tasks.emplace_back(i, piece);
    }
    const int64_t elements = most([](const Stream& s) { return std::min(s.rows, s.piece_rows) * s.columns; });
    over(static_cast<int64_t>(tasks.size()), elements, [&](int64_t task) {
      const auto [i, piece] = tasks[task];
      const Stream& s = streams_[i];
      const int64_t begin = piece * s.piece_rows, end = std::min(begin + s.piece_rows, s.rows);
      kernels().sum(kernel_stream(i), begin, end, sums_of(i, piece));
    });
    over(static_cast<int64_t>(selected_.size()), most([](const Stream& s) { return s.pieces * s.columns; }),
         [&](int64_t i) { add_pieces(selected_[i]); });
  }

  // Where squares about the shift are much larger than about the mean, the difference would lose digits: takes the
  // mean as shift there, and selects those streams to be summed again.
  bool improve_shifts() {
    constexpr double most = 64;
    selected_.clear();
    for (int64_t i = 0; i < static_cast<int64_t>(streams_.size()); ++i) {
      bool bad = false;
      for (int64_t c = 0; c < streams_[i].columns; ++c) {
        const Sums s = total(i, c);
        const double about_mean = s.second - s.first * (s.first / s.count);
        if (s.infinite > 0 || !std::isfinite(s.second) || !(s.second > most * about_mean)) continue;
        double& shift = shift_[streams_[i].first + c];
        shift = s.minimum == s.maximum ? s.minimum : shift + s.first / s.count;
        bad = true;
      }
      if (bad) selected_.push_back(i);
    }
    return !selected_.empty();
  }

  void write(ColumnMoments& results) const {
    auto& [count, mean, m2, minimum, maximum, missing, infinite, mean_low] = results;
    for (int64_t i = 0; i < static_cast<int64_t>(streams_.size()); ++i) {
      for (int64_t c = 0; c < streams_[i].columns; ++c) {
        const int64_t at = streams_[i].first + c;
        const Sums s = total(i, c);
        const Result r = result(s, shift_[at]);
        if (weighted_) {
          put(count, at, s.count);
        } else {
          put(count, at, static_cast<int64_t>(s.count));
        }
        put(mean, at, r.mean);
        put(m2, at, r.m2);
        put(minimum, at, s.minimum + 0.0);  // no -0: which of two zeros is smaller depends on their order
        put(maximum, at, s.maximum + 0.0);
        put(missing, at, static_cast<int64_t>(s.missing));
        put(infinite, at, static_cast<int64_t>(s.infinite));
        put(mean_low, at, r.mean_low);
      }
    }
  }

  static Result result(const Sums& s, double shift) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
    if (s.count == 0) return {0, 0, 0};
    if (s.infinite > 0) {
      const bool above = s.maximum == inf, below = s.minimum == -inf;
      return {above && below ? nan : above ? inf : -inf, 0, nan};
    }
    if (s.minimum == s.maximum) return {s.minimum, 0, 0};
    const double offset = s.first / s.count, mean = shift + offset;
    const double low = std::abs(shift) > std::abs(offset) ? (shift - mean) + offset : (offset - mean) + shift;
    const double m2 = std::isfinite(s.second) ? std::max(s.second - s.first * offset, 0.0) : s.second;
    return {mean, std::isfinite(mean) ? low : 0.0, m2};
  }

  template <class T>
  static void put(Tensor& t, int64_t at, T value) {
    static_cast<T*>(memory_of(t))[at] = value;
  }

  // Calls body with each index, in chunks of at least 32 K elements.
  template <class Body>
  static void over(int64_t count, int64_t elements, const Body& body) {
    parallel_for(count, ceil_divide(32768, std::max<int64_t>(elements, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }

  template <class Measure>
  int64_t most(const Measure& measure) const {
    int64_t largest = 0;
    for (const Stream& s : streams_) largest = std::max<int64_t>(largest, measure(s));
    return largest;
  }

  ColumnStream kernel_stream(int64_t i) const {
    const Stream& s = streams_[i];
    return {s.type,       s.data,          weight_, &shift_[s.first], s.rows, s.columns,
            s.row_stride, s.column_stride, s.fold,  s.item_rows};
  }

  double* sums_of(int64_t i, int64_t piece) { return &sums_[sums_at_[i] + piece * sums_count * streams_[i].columns]; }

  // The first piece gets the sum of all, in a tree of pairs.
  void add_pieces(int64_t i) {
    const int64_t n = streams_[i].columns, pieces = streams_[i].pieces;
    for (int64_t step = 1; step < pieces; step *= 2) {
      for (int64_t piece = 0; piece + step < pieces; piece += 2 * step) {
        double *a = sums_of(i, piece), *b = sums_of(i, piece + step);
        for (int field = 0; field < sums_count; ++field) {
          for (int64_t j = field * n; j < (field + 1) * n; ++j) {
            a[j] = field == sum_minimum   ? std::min(a[j], b[j])
                   : field == sum_maximum ? std::max(a[j], b[j])
                                          : a[j] + b[j];
          }
        }
      }
    }
  }

  Sums total(int64_t i, int64_t c) const {
    constexpr double inf = std::numeric_limits<double>::infinity();
    if (!streams_[i].pieces) return {0, 0, 0, inf, -inf, 0, 0};
    const int64_t n = streams_[i].columns;
    const double* sums = &sums_[sums_at_[i]];
    return {sums[sum_count * n + c],   sums[sum_first * n + c],   sums[sum_second * n + c],  sums[sum_minimum * n + c],
            sums[sum_maximum * n + c], sums[sum_missing * n + c], sums[sum_infinite * n + c]};
  }

  const std::vector<Stream> streams_;
  const bool weighted_;
  const double* weight_;
  std::vector<double> shift_, sums_;
  std::vector<int64_t> sums_at_;   // where the sums of a stream's pieces begin
  std::vector<int64_t> selected_;  // the streams to be summed
};

}  // namespace

ColumnMoments column_moments(const Tensor& x, const OptionalTensor& weight) {
  OptionalTensor weights;
  if (weight) {
    STD_TORCH_CHECK(weight->scalar_type() == ScalarType::Double && x.sizes().size() == 3 &&
                        weight->numel() == x.sizes()[1],
                    "evenkeel: expected a float64 weight for each row");
    weights = as_contiguous(*weight);
  }
  return Moments(streams_of(x), weights ? &*weights : nullptr).compute({x.sizes()[0], x.sizes()[2]});
}

ColumnMoments separate_column_moments(const std::vector<Tensor>& columns) {
  return Moments(streams_of(columns), nullptr).compute({static_cast<int64_t>(columns.size())});
}

}  // namespace evenkeel
