// What every operator file needs: dtypes, sizes and memory of tensors, parallel loops that survive a fork, the kernels
// for this processor.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/types.h"

namespace evenkeel {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

// On x86-64 avx2 and avx512, elsewhere the baseline of the architecture; none where a processor has less than these.
enum class Simd : int { none, baseline, avx2, avx512 };
Simd simd();

constexpr const char* simd_variable = "EVENKEEL_SIMD";
bool names_simd(const char* name);
std::string simd_names();

// The level's name: the best this processor has, or what EVENKEEL_SIMD asks for if it has that.
std::string simd_level();

// Whether kernels fetch what they read next, where that is a run of so many bytes that is read twice before the one after
// it: Intel's processors with AVX-512 foresee where it lies, AMD's where it is short and not apart from the one before.
bool fetches_ahead(int64_t run_bytes, bool apart);

// This processor's variant of what EVENKEEL_VARIANTS declares; with none, nobody may call it.
#if defined(__x86_64__)
#define EVENKEEL_BEST(name) (simd() == Simd::avx512 ? avx512::name : avx2::name)
#else
#define EVENKEEL_BEST(name) baseline::name
#endif

// The dtype of a real tensor.
DType dtype_of(ScalarType type);
inline DType dtype_of(const Tensor& t) { return dtype_of(t.scalar_type()); }

inline DType floating_dtype_of(const Tensor& t) {
  const DType dtype = dtype_of(t);
  STD_TORCH_CHECK(is_floating(dtype), "evenkeel: expected float32, float64, bfloat16 or float16");
  return dtype;
}

// Where a tensor's elements are; raises where its storage was freed.
inline void* memory_of(const Tensor& t) {
  void* const memory = t.data_ptr();
  STD_TORCH_CHECK(memory || t.numel() == 0, "evenkeel: a tensor has ", t.numel(),
                  " elements but no memory: its storage was freed or not made yet");
  return memory;
}

// The compute dtype (opmath).
inline ScalarType opmath_of(DType dtype) { return dtype == DType::float64 ? ScalarType::Double : ScalarType::Float; }
inline ScalarType opmath_of(const Tensor& t) { return opmath_of(floating_dtype_of(t)); }

inline void check_eps_mode(EpsMode mode) {
  STD_TORCH_CHECK(mode >= EpsMode::inside && mode <= EpsMode::clamp,
                  "evenkeel: eps_mode must be 0 (inside), 1 (outside) or 2 (clamp)");
}

inline std::vector<int64_t> sizes_of(const Tensor& t) {
  const auto sizes = t.sizes();
  return {sizes.begin(), sizes.end()};
}

// A new contiguous CPU tensor. A large one lies on huge pages, in a freed block of its size if there is one
// (memory.cpp); `tensors` of its size are all that the call reads and writes.
Tensor empty(const std::vector<int64_t>& sizes, ScalarType dtype, int64_t tensors = 2);

// The most that freed blocks may hold (EVENKEEL_POOL_MB; 0 leaves large outputs to torch's allocator too).
int64_t pool_limit();

// Whether a CPU tensor lies in a block of our own (memory.cpp), which torch cannot resize.
bool is_pooled(const Tensor& t);

inline int64_t bytes_of(const Tensor& t) { return t.numel() * size_of(dtype_of(t)); }

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

// Whether a call ends without an exception, which must not reach CPython.
template <class Call>
bool completes(const Call& call) noexcept {
  try {
    call();
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace evenkeel
