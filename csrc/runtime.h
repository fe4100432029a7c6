// What every operator file needs: dtypes, allocation, parallel loops that survive a fork, the choice of SIMD level.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "rows_kernels.h"

namespace evenkeel {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

enum class Simd : int { baseline, avx2, avx512 };
Simd simd();
const char* simd_name(Simd level);

inline DType dtype_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float: return DType::float32;
    case ScalarType::Double: return DType::float64;
    case ScalarType::BFloat16: return DType::bfloat16;
    case ScalarType::Half: return DType::float16;
    default: STD_TORCH_CHECK(false, "evenkeel: expected float32, float64, bfloat16 or float16"); 
  }
}

inline void check_eps_mode(EpsMode mode) {
  STD_TORCH_CHECK(mode >= EpsMode::inside && mode <= EpsMode::clamp,
                  "evenkeel: eps_mode must be 0 (inside), 1 (outside) or 2 (clamp)");
}

// A new contiguous CPU tensor; a large one on huge pages, where an earlier one was if there is one of its size (memory.cpp).
Tensor empty(const std::vector<int64_t>& sizes, ScalarType dtype);

// torch's own contiguous() goes through the dispatcher even where there is nothing to do.
inline Tensor as_contiguous(const Tensor& t) { return t.is_contiguous() ? t : torch::stable::contiguous(t); }

// A child of fork has none of the parent's threads: loops there run serially instead of waiting for them forever.
bool in_forked_child();

template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= grain || in_forked_child()) {
    if (count > 0) body(0, count);
  } else {
    torch::stable::parallel_for(0, count, grain, body);
  }
}

}  // namespace evenkeel
