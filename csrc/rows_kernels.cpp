// What the row operators need besides: sums over tasks, parameters in the arithmetic type; and the table of all.
#include "rows_common.h"

namespace evenkeel {
namespace EVENKEEL_ISA {
namespace {

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
  if constexpr (!std::is_same_v<T, double>) {
    const float added = static_cast<float>(offset);
    if (!to_double_ && added == offset) {  // a sum of two floats rounds alike with and without a double between
      for_each_position<float>(n, [&](auto at) { at.store(static_cast<float*>(out), at.load(source) + added); });
      return;
    }
  }
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

extern const RowsKernels EVENKEEL_JOIN(rows_kernels_, EVENKEEL_ISA);
const RowsKernels EVENKEEL_JOIN(rows_kernels_, EVENKEEL_ISA) = {
    EVENKEEL_ISA::forward_rows, EVENKEEL_ISA::backward_tasks, EVENKEEL_ISA::finish, EVENKEEL_ISA::widen_vector};

}  // namespace evenkeel
