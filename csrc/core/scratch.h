// Memory for one call.
#pragma once

#include <cstdint>

namespace evenkeel {

// So many bytes, on a cache line; null for none. A thread keeps what its last calls took, unless pool_limit() is 0: freed,
// large memory goes back to the system, and the next call faults its pages in again, which takes longer than a kernel.
class ScratchMemory {
 public:
  explicit ScratchMemory(int64_t bytes);
  ~ScratchMemory();
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;
  void* data() const { return data_; }

 private:
  int64_t size_;
  void* data_;
};

// For numbers of the compute dtype, in doubles' places.
class Scratch {
 public:
  explicit Scratch(int64_t count) : memory_(count * static_cast<int64_t>(sizeof(double))) {}
  double* data() const { return static_cast<double*>(memory_.data()); }

 private:
  ScratchMemory memory_;
};

}  // namespace evenkeel
