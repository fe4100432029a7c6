// Runs the phases of a channel operator over a tensor's blocks.
#pragma once

#include "channels/kernels.h"
#include "core/caches.h"
#include "core/scratch.h"

namespace evenkeel {

struct ChannelsPhases {
  ChannelsPhase prepare, measure, merge, write, repair;  // null where there is nothing to do
};

// items: of a block; partial: doubles in the sums of an item. The bits do not depend on the threads.
void run(const ChannelsCall& a, int64_t items, int64_t partial, const ChannelsPhases& phases);

// to (batch, channels, positions) <- from (batch, positions, channels)
void lay_channels_outermost(const void* from, void* to, const ChannelsShape& shape, DType dtype);

}  // namespace evenkeel
