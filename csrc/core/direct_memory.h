// The interface between the operators' library and torch/autograd.cpp, whose results lie in the same blocks.
#pragma once

#include <cstdint>

namespace evenkeel {

// Bytes of the smallest output that lies in such a block: as many as malloc may give back to the system at once.
constexpr int64_t smallest_pooled = int64_t{128} << 10;

struct DirectMemory {
  // A block of at least so many bytes, for a call that reads and writes so many tensors of them; null where they are
  // few, or memory is short.
  void* (*take)(int64_t bytes, int64_t tensors) noexcept;
  void (*give_back)(void* block) noexcept;
};

}  // namespace evenkeel

extern "C" __attribute__((visibility("default"))) const evenkeel::DirectMemory* evenkeel_direct_memory();
