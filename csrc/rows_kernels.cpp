// Statistics over dense rows: LayerNorm and RMSNorm, forward and backward. Compiled once per instruction set.
//
// Mean and variance come from the differences from a shift and their squares, in one pass. The shift is the mean of the
// first vector of elements, which is as good as the row's mean where it lies within half a deviation of it; where it
// does not, a second pass (the row is in cache) takes the mean as shift. So a mean of 1e4 with a spread of 0.01 costs
// no accuracy, and a constant row gives exactly 0. The mean is kept in two parts, for where its rounding matters
// against the spread. A row whose scale leaves the range in which float squares are safe is done again in double:
// float's whole range fits there.
#include "rows_kernels.h"

#include <cmath>
#include <type_traits>

#include "simd.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

template <class C>
struct Statistics {
  C mean, mean_rest, reciprocal, bend;
};

inline int64_t row_offset(const RowLayout& layout, int64_t row) {
  int64_t offset = 0;
  for (int axis = layout.axes - 1; axis > 0; --axis) {
    offset += row % layout.sizes[axis] * layout.strides[axis];
    row /= layout.sizes[axis];
  }
  return layout.axes ? offset + row * layout.strides[0] : 0;
}

// Scales between which float squares neither overflow nor lose bits to underflow (with or without flush-to-zero).
inline bool in_float_range(double reciprocal) { return reciprocal > 0x1p-60 && reciprocal < 0x1p48; }
inline bool safe(const Statistics<float>& s) { return in_float_range(s.reciprocal); }
inline bool safe(const Statistics<double>&) { return true; }

// The mean of the first vector, exact where its elements are equal; of a shorter row the first element.
template <class C>
C first_mean(const C* x, int64_t n) {
  constexpr int width = Lanes<C>::width;
  if (n < width) return x[0];
  C sums[width];
  store(sums, load(x));
  for (int half = width / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0] * (C(1) / width);
}

template <class C>
Statistics<C> measure(const C* x, const RowsSpec& spec) {
  using V = typename Lanes<C>::vector;
  const double n = static_cast<double>(spec.features);
  Statistics<C> s{};
  double square = 0;
  if (spec.center) {
    double mean = 0, sums[2];
    const auto take_moments = [&](C shift) {
      sum_terms<C>(spec.features, sums, [&](auto at, V(&out)[2]) {
        const V d = at.keep(at.load(x) - shift);
        out[0] = d;
        out[1] = d * d;
      });
      const double offset = sums[0] / n;
      mean = static_cast<double>(shift) + offset;
      square = sums[1] / n - offset * offset;
      return 4 * offset * offset <= square;
    };
    if (!take_moments(first_mean(x, spec.features))) take_moments(static_cast<C>(mean));
    if (square < 0) square = 0;
    s.mean = static_cast<C>(mean);
    s.mean_rest = static_cast<C>(mean - static_cast<double>(s.mean));
  } else {
    double sum[1];
    sum_terms<C>(spec.features, sum, [&](auto at, V(&out)[1]) {
      const V v = at.load(x);
      out[0] = v * v;
    });
    square = sum[0] / n;
  }
  if (spec.eps_mode == EpsMode::inside) {
    s.reciprocal = static_cast<C>(1.0 / std::sqrt(square + spec.eps));
    s.bend = 1;
  } else if (spec.eps_mode == EpsMode::outside) {
    const double root = std::sqrt(square);
    s.reciprocal = static_cast<C>(1.0 / (root + spec.eps));
    s.bend = static_cast<C>(root == 0 ? 0.0 : (root + spec.eps) / root);
  } else {
    const double root = std::sqrt(square);
    s.reciprocal = static_cast<C>(1.0 / (root < spec.eps ? spec.eps : root));
    s.bend = root < spec.eps ? 0 : 1;
  }
  return s;
}

template <class C>
void save(const Statistics<C>& s, const RowsSpec& spec, C* saved) {
  if (spec.center) {
    *saved++ = s.mean;
    *saved++ = s.mean_rest;
  }
  *saved++ = s.reciprocal;
  if (spec.eps_mode != EpsMode::inside) *saved = s.bend;
}

template <class C>
Statistics<C> restore(const RowsSpec& spec, const C* saved) {
  Statistics<C> s{0, 0, 0, 1};
  if (spec.center) {
    s.mean = *saved++;
    s.mean_rest = *saved++;
  }
  s.reciprocal = *saved++;
  if (spec.eps_mode != EpsMode::inside) s.bend = *saved;
  return s;
}

// What is subtracted: nothing, the mean, or both its parts.
enum class Centring { none, rounded, both };

// The second part is left out where it is below 2^-27 of the scale: a thirtieth of an ulp of the largest values.
template <class C>
Centring centring_of(const RowsSpec& spec, const Statistics<C>& s) {
  if (!spec.center) return Centring::none;
  const C part = s.mean_rest * s.reciprocal;
  const bool negligible = sizeof(C) == sizeof(float) && part < C(0x1p-27) && part > C(-0x1p-27);
  return negligible ? Centring::rounded : Centring::both;
}

// Calls body with the row's centring as a compile-time constant.
template <class C, class Body>
inline void with_centring(const RowsSpec& spec, const Statistics<C>& s, const Body& body) {
  switch (centring_of(spec, s)) {
    case Centring::none: return body(std::integral_constant<Centring, Centring::none>{});
    case Centring::rounded: return body(std::integral_constant<Centring, Centring::rounded>{});
    case Centring::both: return body(std::integral_constant<Centring, Centring::both>{});
  }
}

template <Centring centring, class C, class At>
inline typename Lanes<C>::vector centred(const At& at, const C* x, const Statistics<C>& s) {
  if constexpr (centring == Centring::none) return at.load(x);
  if constexpr (centring == Centring::rounded) return at.load(x) - s.mean;
  return (at.load(x) - s.mean) - s.mean_rest;
}

template <Centring centring, class C, class Out>
void write_row(const C* x, const C* weight, const C* bias, int64_t n, const Statistics<C>& s, Out* y) {
  if (weight && bias) {
    for_each_position<C>(n, [&](auto at) {
      at.store(y, centred<centring>(at, x, s) * s.reciprocal * at.load(weight) + at.load(bias));
    });
  } else if (weight) {
    for_each_position<C>(n, [&](auto at) { at.store(y, centred<centring>(at, x, s) * s.reciprocal * at.load(weight)); });
  } else if (bias) {
    for_each_position<C>(n, [&](auto at) { at.store(y, centred<centring>(at, x, s) * s.reciprocal + at.load(bias)); });
  } else {
    for_each_position<C>(n, [&](auto at) { at.store(y, centred<centring>(at, x, s) * s.reciprocal); });
  }
}

template <class C, class Out>
void write_row(const RowsSpec& spec, const C* x, const C* weight, const C* bias, const Statistics<C>& s, Out* y) {
  with_centring(spec, s, [&](auto centring) { write_row<centring.value>(x, weight, bias, spec.features, s, y); });
}

// A row in double: null stays null.
template <class T>
const double* in_double(const T* row, double* scratch, int64_t n) {
  if (!row) return nullptr;
  for (int64_t i = 0; i < n; ++i) scratch[i] = to_double(row[i]);
  return scratch;
}

template <class T>
__attribute__((noinline)) Statistics<float> forward_row_in_double(const RowsForward& a, const T* x, T* y) {
  const int64_t n = a.spec.features, stride = padded(n);
  const Buffer<double> rows(4 * stride);
  double* scratch = rows.data();
  const double* wide = in_double(x, scratch, n);
  const double* weight = in_double(static_cast<const float*>(a.weight), scratch + stride, n);
  const double* bias = in_double(static_cast<const float*>(a.bias), scratch + 2 * stride, n);
  const Statistics<double> s = measure(wide, a.spec);
  double* out = scratch + 3 * stride;
  write_row(a.spec, wide, weight, bias, s, out);
  narrow(y, out, n);
  return {static_cast<float>(s.mean), static_cast<float>(s.mean - static_cast<float>(s.mean)),
          static_cast<float>(s.reciprocal), static_cast<float>(s.bend)};
}

template <class T>
void forward_rows(const RowsForward& a, int64_t begin, int64_t end) {
  using C = typename Compute<T>::type;
  const int64_t n = a.spec.features;
  const int width = a.spec.statistics_width();
  C* saved = static_cast<C*>(a.statistics);
  const Buffer<C> widened(sizeof(T) == sizeof(C) ? 0 : padded(n));
  for (int64_t row = begin; row < end; ++row) {
    const T* source = static_cast<const T*>(a.x) + row_offset(a.x_layout, row);
    const C* x = widen(source, widened.data(), n);
    T* y = static_cast<T*>(a.y) + row * n;
    Statistics<C> s = measure(x, a.spec);
    if constexpr (sizeof(C) == sizeof(float)) {
      if (!safe(s)) {
        const Statistics<C> found = forward_row_in_double(a, source, y);
        if (saved) save(found, a.spec, saved + row * width);
        continue;
      }
    }
    write_row(a.spec, x, static_cast<const C*>(a.weight), static_cast<const C*>(a.bias), s, y);
    if (saved) save(s, a.spec, saved + row * width);
  }
}

// One row of the backward: adds to the accumulators (padded, or null) and writes dx unless it is null.
//   x_hat = (x - mean) / scale,  g = dy * weight
//   dx = (g - mean(g) - x_hat * bend * mean(g * x_hat)) / scale,  dweight += dy * x_hat,  dbias += dy
template <Centring centring, class C, class Out>
void backward_row(const C* x, const C* dy, const C* weight, int64_t n, const Statistics<C>& s, C* dweight, C* dbias,
                  Out* dx) {
  using V = typename Lanes<C>::vector;
  double sums[2];
  sum_terms<C>(n, sums, [&](auto at, V(&out)[2]) {
    const Whole<C> whole{at.i};  // the accumulators are padded
    const V upstream = at.load(dy);
    const V x_hat = at.keep(centred<centring>(at, x, s) * s.reciprocal);
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
  const double reciprocal = s.reciprocal, count = static_cast<double>(n);
  const C shift = centring == Centring::none ? 0 : static_cast<C>(sums[0] / count * reciprocal);
  const C along = static_cast<C>(sums[1] / count * s.bend * reciprocal * reciprocal);
  for_each_position<C>(n, [&](auto at) {
    V g = at.load(dy) * s.reciprocal;
    if (weight) g = g * at.load(weight);
    if constexpr (centring != Centring::none) g = g - shift;
    at.store(dx, g - centred<centring>(at, x, s) * along);
  });
}

template <class C, class Out>
void backward_row(const RowsSpec& spec, const C* x, const C* dy, const C* weight, const Statistics<C>& s, C* dweight,
                  C* dbias, Out* dx) {
  with_centring(spec, s, [&](auto centring) {
    backward_row<centring.value>(x, dy, weight, spec.features, s, dweight, dbias, dx);
  });
}

template <class T>
__attribute__((noinline)) void backward_row_in_double(const RowsBackward& a, const T* x, const T* dy, double* dweight,
                                                      double* dbias, T* dx) {
  const int64_t n = a.spec.features, stride = a.padded_features;
  const Buffer<double> rows(4 * stride);
  double* scratch = rows.data();
  const double* wide = in_double(x, scratch, n);
  const double* upstream = in_double(dy, scratch + stride, n);
  const double* weight = in_double(static_cast<const float*>(a.weight), scratch + 2 * stride, n);
  double* out = dx ? scratch + 3 * stride : nullptr;
  backward_row(a.spec, wide, upstream, weight, measure(wide, a.spec), dweight, dbias, out);
  if (dx) narrow(dx, out, n);
}

template <class C>
void flush(double* total, C* part, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    total[i] += part[i];
    part[i] = 0;
  }
}

template <class T>
void backward_task(const RowsBackward& a, int64_t task) {
  using C = typename Compute<T>::type;
  constexpr bool is_float = sizeof(C) == sizeof(float);
  constexpr int64_t rows_per_flush = 16;  // float sums of 64 rows exceeded 3 ulps; longer sums are double
  const int64_t n = a.spec.features, stride = a.padded_features, width = a.spec.statistics_width();
  const Buffer<C> widened(sizeof(T) == sizeof(C) ? 0 : 2 * stride);
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
    const T* x = static_cast<const T*>(a.x) + row_offset(a.x_layout, row);
    const T* dy = static_cast<const T*>(a.dy) + row_offset(a.dy_layout, row);
    T* dx = a.dx ? static_cast<T*>(a.dx) + row * n : nullptr;
    const Statistics<C> s = restore(a.spec, static_cast<const C*>(a.statistics) + row * width);
    if constexpr (is_float) {
      if (!safe(s)) {
        backward_row_in_double(a, x, dy, dweight_total, dbias_total, dx);
        continue;
      }
    }
    backward_row(a.spec, widen(x, widened.data(), n), widen(dy, widened.data() + stride, n),
                 static_cast<const C*>(a.weight), s, dweight, dbias, dx);
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

void forward(const RowsForward& a, int64_t begin, int64_t end) {
  switch (a.dtype) {
    case DType::float32: return forward_rows<float>(a, begin, end);
    case DType::float64: return forward_rows<double>(a, begin, end);
    case DType::bfloat16: return forward_rows<bf16>(a, begin, end);
    case DType::float16: return forward_rows<f16>(a, begin, end);
  }
}

void backward(const RowsBackward& a, int64_t begin, int64_t end) {
  for (int64_t task = begin; task < end; ++task) {
    switch (a.dtype) {
      case DType::float32: backward_task<float>(a, task); break;
      case DType::float64: backward_task<double>(a, task); break;
      case DType::bfloat16: backward_task<bf16>(a, task); break;
      case DType::float16: backward_task<f16>(a, task); break;
    }
  }
}

void finish(const double* partial, int64_t tasks, int64_t stride, int64_t begin, int64_t end, DType dtype, void* out) {
  constexpr int64_t block = 256;
  double sums[block];
  for (int64_t start = begin; start < end; start += block) {
    const int64_t count = end - start < block ? end - start : block;
    for (int64_t i = 0; i < count; ++i) sums[i] = 0;
    for (int64_t task = 0; task < tasks; ++task) {
      const double* row = partial + task * stride + start;
      for (int64_t i = 0; i < count; ++i) sums[i] += row[i];
    }
    switch (dtype) {
      case DType::float32: narrow(static_cast<float*>(out) + start, sums, count); break;
      case DType::float64: narrow(static_cast<double*>(out) + start, sums, count); break;
      case DType::bfloat16: narrow(static_cast<bf16*>(out) + start, sums, count); break;
      case DType::float16: narrow(static_cast<f16*>(out) + start, sums, count); break;
    }
  }
}

template <class T>
void widen_as(const T* source, double offset, int64_t n, bool to_double_, void* out) {
  for (int64_t i = 0; i < n; ++i) {
    const double value = to_double(source[i]) + offset;
    if (to_double_) {
      static_cast<double*>(out)[i] = value;
    } else {
      static_cast<float*>(out)[i] = static_cast<float>(value);
    }
  }
}

void widen_vector(const void* source, DType dtype, double offset, int64_t n, bool to_double_, void* out) {
  switch (dtype) {
    case DType::float32: return widen_as(static_cast<const float*>(source), offset, n, to_double_, out);
    case DType::float64: return widen_as(static_cast<const double*>(source), offset, n, to_double_, out);
    case DType::bfloat16: return widen_as(static_cast<const bf16*>(source), offset, n, to_double_, out);
    case DType::float16: return widen_as(static_cast<const f16*>(source), offset, n, to_double_, out);
  }
}

}  // namespace
}  // namespace EVENKEEL_ISA

#define EVENKEEL_JOIN_(a, b) a##b
#define EVENKEEL_JOIN(a, b) EVENKEEL_JOIN_(a, b)
#define EVENKEEL_TEXT_(a) #a
#define EVENKEEL_TEXT(a) EVENKEEL_TEXT_(a)

extern const RowsKernels EVENKEEL_JOIN(rows_kernels_, EVENKEEL_ISA);
const RowsKernels EVENKEEL_JOIN(rows_kernels_, EVENKEEL_ISA) = {
    EVENKEEL_TEXT(EVENKEEL_ISA), EVENKEEL_ISA::forward, EVENKEEL_ISA::backward, EVENKEEL_ISA::finish,
    EVENKEEL_ISA::widen_vector};

}  // namespace evenkeel
