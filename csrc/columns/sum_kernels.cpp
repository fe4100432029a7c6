// Sums over the columns of tables. Compiled once per instruction set.
//
// A block of rows is first summed as if it held finite numbers only: one that does not gives a sum that is not finite,
// and is summed again element by element. Both ways give the same bits where both are right.
#include <limits>

#include "columns/kernels.h"
#include "core/numbers.h"
#include "core/positions.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
using Mask = LaneMask<double>;

inline Doubles only(Mask keep, Doubles v) { return keep_lanes<double>(v, keep); }
template <class V>
inline V smaller(V a, V b) {
  return choose(a < b, a, b);
}
template <class V>
inline V larger(V a, V b) {
  return choose(a > b, a, b);
}

// The sums of one item, a lane for each element of a folded row.
template <class T>
struct LaneSums {
  using Range = std::conditional_t<is_float<T>, float, double>;
  int64_t width;
  Buffer<double> memory;
  Buffer<Range> ranges;
  double *shift, *first, *second, *count, *missing, *infinite, *minimum, *maximum;
  Range *low, *high;  // of the items without missing values

  explicit LaneSums(int64_t width_) : width(width_), memory(8 * width_), ranges(2 * width_) {
    double** runs[] = {&shift, &first, &second, &count, &missing, &infinite, &minimum, &maximum};
    for (int i = 0; i < 8; ++i) *runs[i] = memory.data() + i * width;
    low = ranges.data();
    high = low + width;
  }

  void reset() {
    for (int64_t i = 0; i < width; ++i) {
      first[i] = second[i] = count[i] = missing[i] = infinite[i] = 0;
      minimum[i] = infinity, maximum[i] = -infinity;
      low[i] = std::numeric_limits<Range>::infinity(), high[i] = -std::numeric_limits<Range>::infinity();
    }
  }
};

// Rows as the loops below read them: the elements of a row are neighbours; past `readable` there is nothing.
template <class T>
struct DenseRows {
  const T* x;
  int64_t rows, stride, width, readable;

  // Calls body with each row's sixteen elements from column c on.
  template <class Body>
  void for_each(int64_t c, const Body& body) const {
    int64_t whole = 0;
    if (readable >= c + 16) whole = stride > 0 ? (readable - c - 16) / stride + 1 : rows;
    if (whole > rows) whole = rows;
    const T* p = x + c;
    for (int64_t r = 0; r < whole; ++r) body(p + r * stride, r);
    const int64_t count = width - c < 16 ? (width > c ? width - c : 0) : 16;
    for (int64_t r = whole; r < rows; ++r) {
      T buffer[16] = {};
      std::memcpy(buffer, p + r * stride, count * sizeof(T));
      body(buffer, r);
    }
  }
};

// The rows after these, fetched a few lines at a time: as one run of memory, or each by itself where what lies between
// them is more than they are.
template <class T>
class Ahead {
 public:
  explicit Ahead(const DenseRows<T>& rows) : row_(reinterpret_cast<const char*>(rows.x + rows.rows * rows.stride)) {
    const bool apart = rows.stride > 2 * rows.width;
    rows_ = apart ? rows.rows : 1;
    step_ = rows.stride * static_cast<int64_t>(sizeof(T));
    bytes_ = apart ? rows.width * static_cast<int64_t>(sizeof(T)) + 63 : rows.rows * step_;
  }

  int64_t lines() const { return bytes_ / 64 * rows_; }

  void fetch(int64_t lines) {
    for (; lines > 0; --lines, at_ += 64) {
      if (at_ >= bytes_ && rows_ > 1) at_ = 0, row_ += step_;
      __builtin_prefetch(row_ + at_, 0, 2);
    }
  }

 private:
  const char* row_;
  int64_t rows_, step_, bytes_, at_ = 0;
};

template <class T>
void sum_finite(const DenseRows<T>& rows, LaneSums<T>& s) {
  using V = Vector<typename LaneSums<T>::Range>;
  constexpr int parts = is_float<T> ? 1 : 2;
  Ahead<T> ahead(rows);
  const int64_t lines = ahead.lines() / (s.width / 16) + 1;
  for (int64_t c = 0; c < s.width; c += 16) {
    if (s.width > 16) ahead.fetch(lines);
    Doubles shift[2], first[2], second[2];
    load_doubles(s.shift + c, shift), load_doubles(s.first + c, first), load_doubles(s.second + c, second);
    V low[parts], high[parts];
    std::memcpy(low, s.low + c, sizeof(low)), std::memcpy(high, s.high + c, sizeof(high));
    rows.for_each(c, [&](const T* p, int64_t) {
      Doubles v[2];
      if constexpr (is_float<T>) {
        const Floats f = load(p);
        low[0] = smaller(f, low[0]), high[0] = larger(f, high[0]);
        widen(f, v);
      } else {
        load_doubles(p, v);
        for (int i = 0; i < 2; ++i) low[i] = smaller(v[i], low[i]), high[i] = larger(v[i], high[i]);
      }
      for (int i = 0; i < 2; ++i) {
        const Doubles d = v[i] - shift[i];
        first[i] += d;
        second[i] += d * d;
      }
    });
    store_doubles(s.first + c, first), store_doubles(s.second + c, second);
    std::memcpy(s.low + c, low, sizeof(low)), std::memcpy(s.high + c, high, sizeof(high));
  }
}

// weight: (rows, width of the sums), 0 for elements that do not count; null: all count once.
template <class T>
void sum_any(const DenseRows<T>& rows, const double* weight, LaneSums<T>& s) {
  for (int64_t c = 0; c < s.width; c += 16) {
    for (int64_t h = c; h < c + 16; h += 8) {
      const Doubles shift = load(s.shift + h), one = Doubles{} + 1.0, zero = {};
      Doubles first = load(s.first + h), second = load(s.second + h), count = load(s.count + h);
      Doubles missing = load(s.missing + h), infinite = load(s.infinite + h);
      Doubles low = load(s.minimum + h), high = load(s.maximum + h);
      rows.for_each(c, [&](const T* p, int64_t r) {
        Doubles both[2];
        load_doubles(p, both);
        const Doubles v = both[h == c ? 0 : 1], w = weight ? load(weight + r * s.width + h) : one;
        const Mask taken = w != zero, valid = taken & (v == v), finite = valid & (v - v == zero);
        const Doubles share = only(finite, w), d = only(finite, v - shift);
        count += only(valid, w);
        first += share * d;
        second += share * d * d;
        missing += only(taken & ~valid, one);
        infinite += only(valid & ~finite, one);
        low = smaller(choose(valid, v, zero + infinity), low);
        high = larger(choose(valid, v, zero - infinity), high);
      });
      store(s.first + h, first), store(s.second + h, second), store(s.count + h, count);
      store(s.missing + h, missing), store(s.infinite + h, infinite);
      store(s.minimum + h, low), store(s.maximum + h, high);
    }
  }
}

template <class T>
class StreamSummer {
 public:
  explicit StreamSummer(const ColumnStream& stream)
      : a_(stream),
        x_(static_cast<const T*>(stream.x)),
        width_(stream.fold * stream.columns),
        direct_((a_.column_stride == 1 || a_.columns == 1) && (a_.fold == 1 || a_.row_stride == a_.columns)),
        group_(rows_together()),
        sums_((width_ + 15) / 16 * 16),
        packed_(direct_ ? 0 : group_ * width_ + 16),
        weights_(group_ * sums_.width) {
    for (int64_t i = 0; i < sums_.width; ++i) sums_.shift[i] = i < width_ ? a_.shift[i % a_.columns] : 0;
  }

  void add_item(int64_t begin, int64_t end, double* out) {
    if (!a_.weight && !careful_) {
      sum(begin, end, false);
      careful_ = !finite();  // where one item has missing values, the next often has too
      if (!careful_) {
        add(end - begin, out);
        return;
      }
    }
    sum(begin, end, true);
    careful_ = add(0, out) != 0;
  }

 private:
  // Rows whose elements the first cache holds: they are walked once for every sixteen lanes.
  int64_t rows_together() const {
    const int64_t fitting = 24576 / static_cast<int64_t>(sizeof(T)) / (width_ > 0 ? width_ : 1);
    return fitting < 6 ? 6 : fitting > 256 ? 256 : fitting;
  }

  void sum(int64_t begin, int64_t end, bool any) {
    sums_.reset();
    const int64_t step = group_ * a_.fold, whole = begin + (end - begin) / a_.fold * a_.fold;
    for (int64_t row = begin; row < whole; row += step) {
      const int64_t stop = row + step < whole ? row + step : whole;
      const DenseRows<T> rows = dense(row, stop, width_);
      if (any) {
        sum_any(rows, a_.weight ? spread_weights(row, stop) : nullptr, sums_);
      } else {
        sum_finite(rows, sums_);
      }
    }
    // rows that do not fill a folded one: the other lanes weigh nothing
    if (whole < end) sum_any(dense(whole, end, (end - whole) * a_.columns), spread_weights(whole, end), sums_);
  }

  DenseRows<T> dense(int64_t begin, int64_t end, int64_t width) {
    const int64_t rows = end - begin, folded = (rows + a_.fold - 1) / a_.fold;
    const T* first = x_ + begin * a_.row_stride;
    if (direct_) {
      const int64_t readable = (a_.rows - 1 - begin) * a_.row_stride + a_.columns;
      return {first, folded, a_.fold * a_.row_stride, width, readable};
    }
    T* out = packed_.data();
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = first + r * a_.row_stride;
      for (int64_t c = 0; c < a_.columns; ++c) *out++ = row[c * a_.column_stride];
    }
    return {packed_.data(), folded, width_, width, rows * a_.columns};
  }

  const double* spread_weights(int64_t begin, int64_t end) {
    const int64_t rows = end - begin, folded = (rows + a_.fold - 1) / a_.fold;
    for (int64_t f = 0; f < folded; ++f) {
      double* out = weights_.data() + f * sums_.width;
      int64_t lane = 0;
      for (int64_t r = f * a_.fold; r < (f + 1) * a_.fold && r < rows; ++r) {
        const double w = a_.weight ? a_.weight[begin + r] : 1.0;
        for (int64_t c = 0; c < a_.columns; ++c) out[lane++] = w;
      }
      for (; lane < sums_.width; ++lane) out[lane] = 0;
    }
    return weights_.data();
  }

  bool finite() const {
    double spoiled = 0;  // 0 * inf and 0 * NaN are NaN
    for (int64_t i = 0; i < width_; ++i) spoiled += 0 * (sums_.first[i] + sums_.second[i]);
    return spoiled == 0;
  }

  // Adds the item's sums to those of its piece; returns how many values were not finite.
  double add(int64_t counted, double* out) const {
    const int64_t n = a_.columns;
    double unusual = 0;
    for (int64_t c = 0; c < n; ++c) {
      double count = 0, first = 0, second = 0, missing = 0, infinite = 0, low = infinity, high = -infinity;
      for (int64_t i = c; i < width_; i += n) {
        count += sums_.count[i], first += sums_.first[i], second += sums_.second[i];
        missing += sums_.missing[i], infinite += sums_.infinite[i];
        low = smaller(smaller<double>(sums_.low[i], sums_.minimum[i]), low);
        high = larger(larger<double>(sums_.high[i], sums_.maximum[i]), high);
      }
      // the rows that were summed as finite ones; the others counted themselves
      const double whole = static_cast<double>(counted / a_.fold * a_.fold);
      out[sum_count * n + c] += whole + count;
      out[sum_first * n + c] += first;
      out[sum_second * n + c] += second;
      out[sum_missing * n + c] += missing;
      out[sum_infinite * n + c] += infinite;
      out[sum_minimum * n + c] = smaller(low, out[sum_minimum * n + c]);
      out[sum_maximum * n + c] = larger(high, out[sum_maximum * n + c]);
      unusual += missing + infinite;
    }
    return unusual;
  }

  const ColumnStream& a_;
  const T* x_;
  const int64_t width_;
  const bool direct_;
  const int64_t group_;
  LaneSums<T> sums_;
  Buffer<T> packed_;
  Buffer<double> weights_;
  bool careful_ = false;
};

void sum(const ColumnStream& a, int64_t begin, int64_t end, double* sums) {
  for (int64_t i = 0; i < sums_count * a.columns; ++i) sums[i] = 0;
  for (int64_t c = 0; c < a.columns; ++c) {
    sums[sum_minimum * a.columns + c] = infinity;
    sums[sum_maximum * a.columns + c] = -infinity;
  }
  with_number(a.type, [&](auto number) {
    StreamSummer<decltype(number)> summer(a);
    for (int64_t row = begin; row < end; row += a.item_rows) {
      summer.add_item(row, row + a.item_rows < end ? row + a.item_rows : end, sums);
    }
  });
}

template <class T>
inline double number_at(const T* p) {
  T buffer[16] = {*p};
  Doubles v[2];
  load_doubles(buffer, v);
  return v[0][0];
}

// The median of rows from all over the column: neither an outlier nor sorted rows make it a bad shift. Without a
// finite one among them the first that is finite, if it comes soon; a bad shift costs a second pass and no digits.
void find_shift(const ColumnStream& a, double* shift) {
  constexpr int64_t most = 15, share = 64, soon = 1024;
  with_number(a.type, [&](auto number) {
    const auto* x = static_cast<const decltype(number)*>(a.x);
    const int64_t samples = a.rows / share > most ? most : a.rows / share > 0 ? a.rows / share : 1;
    for (int64_t c = 0; c < a.columns; ++c) {
      const auto value = [&](int64_t row) { return number_at(x + row * a.row_stride + c * a.column_stride); };
      double sorted[most];
      int count = 0;
      for (int64_t s = 0; s < samples; ++s) {
        const double v = value((a.rows - 1) / samples * s);
        if (!(v - v == 0)) continue;
        int at = count++;
        for (; at > 0 && sorted[at - 1] > v; --at) sorted[at] = sorted[at - 1];
        sorted[at] = v;
      }
      for (int64_t row = 1; !count && row < a.rows && row < soon; ++row) {
        const double v = value(row);
        if (v - v == 0) sorted[count++] = v;
      }
      shift[c] = count ? sorted[count / 2] : 0;
    }
  });
}

}  // namespace

const ColumnSumKernels column_sum_kernels = {sum, find_shift};

}  // namespace evenkeel::EVENKEEL_ISA
