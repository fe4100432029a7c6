// What the operators on tables and pictures share.
#pragma once

#include "columns_kernels.h"
#include "runtime.h"

namespace evenkeel {

const ColumnsKernels& columns_kernels();
Number number_of(const Tensor& t);
std::vector<int64_t> shape_of(const Tensor& t);

// Results of this size do not stay in the caches: they are written past them, unless they overwrite what was read.
inline constexpr int64_t streamed_bytes = int64_t{16} << 20;

}  // namespace evenkeel
