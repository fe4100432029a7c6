// Numbers, options and sizes that operators and kernels share; plain data, the same for every instruction set.
#pragma once

#include <cstdint>

// Declares a table of kernels that is defined once per instruction set, in the namespace of its name. A library may be
// built without some of them.
#define EVENKEEL_VARIANTS(Type, name)                 \
  namespace baseline {                                \
  extern const Type name __attribute__((weak));       \
  }                                                   \
  namespace avx2 {                                    \
  extern const Type name __attribute__((weak));       \
  }                                                   \
  namespace avx512 {                                  \
  extern const Type name __attribute__((weak));       \
  }

namespace evenkeel {

enum class DType : int { float32, float64, bfloat16, float16, uint8, int8, int16, uint16, int32, int64 };

constexpr bool is_floating(DType dtype) { return dtype <= DType::float16; }
constexpr int64_t size_of(DType dtype) {
  constexpr int64_t sizes[] = {4, 8, 2, 2, 1, 1, 2, 2, 4, 8};
  return sizes[static_cast<int>(dtype)];
}

// The contiguous values of a parameter or of its gradient, or none.
struct Values {
  void* data = nullptr;
  DType dtype = DType::float32;
};

enum class EpsMode : int64_t { inside, outside, clamp };

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A length rounded up to whole vectors.
constexpr int64_t padded(int64_t count) { return ceil_divide(count, 16) * 16; }

// Scales between which float squares neither overflow nor lose bits to underflow (with or without flush-to-zero).
constexpr double smallest_in_range = 0x1p-60, largest_in_range = 0x1p48;
constexpr bool in_float_range(double reciprocal) {
  return reciprocal > smallest_in_range && reciprocal < largest_in_range;
}

// After writing past the caches and before another thread may read.
static inline void finish_streams() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace evenkeel
