// Runs the phases of a channel operator over a tensor's blocks.
#pragma once

#include <memory>

#include "channels/kernels.h"
#include "core/caches.h"

namespace evenkeel {

// Memory for numbers of the compute dtype, on a cache line; null for none.
class Scratch {
 public:
  explicit Scratch(int64_t count) {
    if (count == 0) return;
    memory_.reset(new double[static_cast<size_t>(count + 7)]);
    const auto start = reinterpret_cast<uintptr_t>(memory_.get());
    data_ = memory_.get() + (cache_line - start % cache_line) % cache_line / sizeof(double);
  }
  double* data() const { return data_; }

 private:
  std::unique_ptr<double[]> memory_;
  double* data_ = nullptr;
};

struct ChannelsPhases {
  ChannelsPhase prepare, measure, merge, write, repair;  // null where there is nothing to do
};

// items: of a block; partial: doubles in the sums of an item. The bits do not depend on the threads.
void run(const ChannelsCall& a, int64_t items, int64_t partial, const ChannelsPhases& phases);

// to (batch, channels, positions) <- from (batch, positions, channels)
void lay_channels_outermost(const void* from, void* to, const ChannelsShape& shape, DType dtype);

}  // namespace evenkeel
