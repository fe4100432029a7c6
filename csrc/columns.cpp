// The operators on tables: strides, allocation and the division of work; columns_kernels.cpp computes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "columns_runtime.h"
#include "operators.h"

namespace evenkeel {

const ColumnsKernels& columns_kernels() {
#if defined(__x86_64__)
  if (simd() == Simd::avx512) return columns_kernels_avx512;
  if (simd() == Simd::avx2) return columns_kernels_avx2;
#endif
  return columns_kernels_baseline;
}

Number number_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return Number::float32;
    case ScalarType::Double: return Number::float64;
    case ScalarType::BFloat16: return Number::bfloat16;
    case ScalarType::Half: return Number::float16;
    case ScalarType::Byte:
    case ScalarType::Bool: return Number::uint8;
    case ScalarType::Char: return Number::int8;
    case ScalarType::Short: return Number::int16;
    case ScalarType::UInt16: return Number::uint16;
    case ScalarType::Int: return Number::int32;
    case ScalarType::Long: return Number::int64;
    default: STD_TORCH_CHECK(false, "evenkeel: expected a real dtype");
  }
}

std::vector<int64_t> shape_of(const Tensor& t) {
  const auto sizes = t.sizes();
  return {sizes.begin(), sizes.end()};
}

namespace {

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// (tables, rows, columns), walked in streams: blocks of columns, or single columns of tables stored by columns.
struct Tables {
  int64_t tables, rows, columns;
  int64_t table_stride, row_stride, column_stride;
  int64_t block;              // columns of a stream
  int64_t blocks;             // of a table
  int64_t streams() const { return tables * blocks; }
};

// Sums of this many columns stay in the second cache.
constexpr int64_t most_columns = 1024;

Tables tables_of(const Tensor& x) {
  STD_TORCH_CHECK(x.sizes().size() == 3, "evenkeel: expected (tables, rows, columns)");
  const auto sizes = x.sizes(), strides = x.strides();
  Tables t{sizes[0], sizes[1], sizes[2], strides[0], strides[1], strides[2], 0, 0};
  const bool by_columns = t.columns > 1 && t.column_stride != 1 && (t.row_stride == 1 || t.row_stride < t.column_stride);
  t.block = by_columns ? 1 : std::min(t.columns, most_columns);
  t.blocks = t.block ? ceil_divide(t.columns, t.block) : 0;
  return t;
}

class Moments {
 public:
  Moments(const Tensor& x, const double* weight)
      : t_(tables_of(x)),
        type_(number_of(x)),
        data_(static_cast<const char*>(x.data_ptr())),
        weight_(weight),
        shift_(static_cast<size_t>(t_.tables * t_.columns)),
        selected_(static_cast<size_t>(t_.streams())) {
    // about 128 K elements an item; about 256 pieces in all: neither depends on the number of threads
    constexpr int64_t item = 131072, pieces = 256;
    fold_ = t_.block > 0 && t_.block <= 64 ? 16 / std::gcd(t_.block, int64_t{16}) : 1;
    item_rows_ = ceil_divide(item, std::max<int64_t>(t_.block * fold_, 1)) * fold_;
    const int64_t items = ceil_divide(t_.rows, item_rows_);
    const int64_t wanted = std::clamp<int64_t>(pieces / std::max<int64_t>(t_.streams(), 1), 1, std::max<int64_t>(items, 1));
    piece_rows_ = ceil_divide(items, wanted) * item_rows_;
    pieces_ = t_.rows ? ceil_divide(t_.rows, piece_rows_) : 0;
    sums_.resize(static_cast<size_t>(std::max<int64_t>(pieces_, 1) * sums_count * t_.tables * t_.columns));
    std::iota(selected_.begin(), selected_.end(), int64_t{0});
  }

  void find_shifts() {
    over(t_.streams(), 64 * t_.block,
         [&](int64_t i) { columns_kernels().find_shift(stream(i), &shift_[first_column(i)]); });
  }

  void sum() {
    over(static_cast<int64_t>(selected_.size()) * pieces_, std::min(t_.rows, piece_rows_) * t_.block, [&](int64_t task) {
      const int64_t i = selected_[task / pieces_], piece = task % pieces_;
      const int64_t begin = piece * piece_rows_, end = std::min(begin + piece_rows_, t_.rows);
      columns_kernels().sum(stream(i), begin, end, sums_of(i, piece));
    });
    over(static_cast<int64_t>(selected_.size()), pieces_ * t_.block, [&](int64_t s) { add_pieces(selected_[s]); });
  }

  // Where squares about the shift are much larger than about the mean, the difference would lose digits: takes the
  // mean as shift there, and selects those streams to be summed again.
  bool improve_shifts() {
    constexpr double most = 64;
    selected_.clear();
    for (int64_t i = 0; i < t_.streams(); ++i) {
      bool bad = false;
      for (int64_t c = 0; c < columns(i); ++c) {
        const Sums s = total(i, c);
        const double about_mean = s.second - s.first * (s.first / s.count);
        if (s.infinite > 0 || !std::isfinite(s.second) || !(s.second > most * about_mean)) continue;
        double& shift = shift_[first_column(i) + c];
        shift = s.minimum == s.maximum ? s.minimum : shift + s.first / s.count;
        bad = true;
      }
      if (bad) selected_.push_back(i);
    }
    return !selected_.empty();
  }

  void write(Tensor& count, Tensor& mean, Tensor& m2, Tensor& minimum, Tensor& maximum, Tensor& missing,
             Tensor& infinite, Tensor& mean_low) const {
    for (int64_t i = 0; i < t_.streams(); ++i) {
      for (int64_t c = 0; c < columns(i); ++c) {
        const int64_t at = first_column(i) + c;
        const Sums s = total(i, c);
        const Result r = result(s, shift_[at]);
        if (weight_) {
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

 private:
  struct Sums {
    double count, first, second, minimum, maximum, missing, infinite;
  };
  struct Result {
    double mean, mean_low, m2;
  };

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
    static_cast<T*>(t.data_ptr())[at] = value;
  }

  // Calls body with each index, in chunks of at least 32 K elements.
  template <class Body>
  static void over(int64_t count, int64_t elements, const Body& body) {
    parallel_for(count, ceil_divide(32768, std::max<int64_t>(elements, 1)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }

  int64_t first_column(int64_t i) const { return i / t_.blocks * t_.columns + i % t_.blocks * t_.block; }
  int64_t columns(int64_t i) const { return std::min(t_.block, t_.columns - i % t_.blocks * t_.block); }

  ColumnStream stream(int64_t i) const {
    const int64_t offset = i / t_.blocks * t_.table_stride + i % t_.blocks * t_.block * t_.column_stride;
    return {type_,        data_ + offset * size_of(type_), weight_, &shift_[first_column(i)], t_.rows, columns(i),
            t_.row_stride, t_.column_stride,                fold_,   item_rows_};
  }

  double* sums_of(int64_t i, int64_t piece) {
    return &sums_[(first_column(i) * pieces_ + piece * columns(i)) * sums_count];
  }

  // The first piece gets the sum of all, in a tree of pairs.
  void add_pieces(int64_t i) {
    const int64_t n = columns(i);
    for (int64_t step = 1; step < pieces_; step *= 2) {
      for (int64_t piece = 0; piece + step < pieces_; piece += 2 * step) {
        double *a = sums_of(i, piece), *b = sums_of(i, piece + step);
        for (int field = 0; field < sums_count; ++field) {
          for (int64_t j = field * n; j < (field + 1) * n; ++j) {
            a[j] = field == sum_minimum ? std::min(a[j], b[j]) : field == sum_maximum ? std::max(a[j], b[j]) : a[j] + b[j];
          }
        }
      }
    }
  }

  Sums total(int64_t i, int64_t c) const {
    constexpr double inf = std::numeric_limits<double>::infinity();
    if (!pieces_) return {0, 0, 0, inf, -inf, 0, 0};
    const int64_t n = columns(i);
    const double* sums = &sums_[first_column(i) * pieces_ * sums_count];
    return {sums[sum_count * n + c],   sums[sum_first * n + c],   sums[sum_second * n + c],  sums[sum_minimum * n + c],
            sums[sum_maximum * n + c], sums[sum_missing * n + c], sums[sum_infinite * n + c]};
  }

  const Tables t_;
  const Number type_;
  const char* data_;
  const double* weight_;
  std::vector<double> shift_;
  std::vector<int64_t> selected_;  // the streams to be summed
  int64_t fold_, item_rows_, piece_rows_, pieces_;
  std::vector<double> sums_;
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> column_moments(
    const Tensor& x, const std::optional<Tensor>& weight) {
  std::optional<Tensor> weights;
  if (weight) {
    STD_TORCH_CHECK(weight->scalar_type() == ScalarType::Double && x.sizes().size() == 3 && weight->numel() == x.sizes()[1],
                    "evenkeel: expected a float64 weight for each row");
    weights = as_contiguous(*weight);
  }
  Moments moments(x, weights ? static_cast<const double*>(weights->data_ptr()) : nullptr);
  const std::vector<int64_t> shape{x.sizes()[0], x.sizes()[2]};
  const auto numbers = [&] { return empty(shape, ScalarType::Double); };
  const auto counts = [&] { return empty(shape, ScalarType::Long); };
  Tensor count = weight ? numbers() : counts(), mean = numbers(), m2 = numbers(), minimum = numbers(),
         maximum = numbers(), missing = counts(), infinite = counts(), mean_low = numbers();
  if (x.numel() > 0) {
    moments.find_shifts();
    moments.sum();
    if (moments.improve_shifts()) moments.sum();
  }
  moments.write(count, mean, m2, minimum, maximum, missing, infinite, mean_low);
  return {count, mean, m2, minimum, maximum, missing, infinite, mean_low};
}

}  // namespace evenkeel
