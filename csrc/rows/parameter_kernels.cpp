// Parameters in the compute dtype and the sums of their gradients over tasks; the table of the row kernels.
#include "rows/statistics.h"

namespace evenkeel::EVENKEEL_ISA {
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
    with_floating(dtype, [&](auto t) { narrow(static_cast<decltype(t)*>(out) + start, sums, count); });
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
  with_floating(dtype, [&](auto t) {
    widen_as(static_cast<const decltype(t)*>(source), offset, n, to_double_, out);
  });
}

}  // namespace

const RowsKernels rows_kernels = {forward_rows, backward_tasks, few_slopes, few_blocks, finish, widen_vector};

}  // namespace evenkeel::EVENKEEL_ISA
