// The channel pattern's forward and backward on plain memory.
#pragma once

#include <cstddef>

#include "channels/kernels.h"
#include "core/members.h"

namespace evenkeel {

// Values are those of the channels, or none. Statistics and variances are in the compute dtype.
struct ChannelsForward {
  ChannelsShape shape;
  DType dtype;  // of x and y
  ChannelsOptions options;
  const void* x;
  void* y;
  Values weight, bias;
  Values mean, variance;  // use these, where they are there
  const uint8_t* mask;    // (batch, positions), or null where everything is valid
  void* statistics;       // (statistics, width), or null where nobody asks for them
  void* variances;        // (statistics), or null
  // moved towards the statistics of the batch by the share `momentum`, where they are there; not with a mask
  Values running_mean, running_var;
  double momentum;
};

struct ChannelsBackward {
  ChannelsShape shape;
  DType dtype;  // of x, dy and dx
  ChannelsOptions options;
  bool remembered;
  const void* x;
  const void* dy;
  void* dx;  // null where it is not needed
  Values weight, bias;
  const uint8_t* mask;
  const void* statistics;
  Values dweight, dbias;
};

// Whether memory is dense with its channels, the second axis, innermost.
inline bool has_channels_innermost(const int64_t* sizes, const int64_t* strides, int64_t axes) {
  if (axes < 2) return false;
  int64_t stride = 1;
  for (int64_t i = 0; i < axes; ++i) {
    const int64_t axis = i == 0 ? 1 : i == axes - 1 ? 0 : axes - i;
    if (sizes[axis] != 1 && strides[axis] != stride) return false;
    stride *= sizes[axis];
  }
  return true;
}

inline int64_t statistics_of(const ChannelsShape& shape, int64_t groups) {
  return groups ? shape.batch * groups : shape.channels;
}

// Of a tensor with elements.
void run_forward(const ChannelsForward& a);
void run_backward(const ChannelsBackward& a);

// running <- (1 - momentum) running + momentum * statistic, with the unbiased variance; rounded once.
void update_running(const ChannelsForward& a);

// The interface between the operators' library and torch/direct_calls.cpp.
struct DirectChannels {
  size_t layout;  // layout_of_channels() of the library
  // false where it failed
  bool (*forward)(const ChannelsForward& a) noexcept;
  bool (*backward)(const ChannelsBackward& a) noexcept;
  // contiguous memory <- channels-last memory (lay_channels_outermost of run.h)
  bool (*lay_channels_outermost)(const void* from, void* to, const ChannelsShape& shape, DType dtype) noexcept;
};

// A hash of the arguments' layout: libraries that were not built from the same structs do not agree on it.
constexpr size_t layout_of_channels() {
  size_t hash = sizeof(DType);
#define EVENKEEL_AT(member) offsetof(T, member)
  {
    using T = DirectChannels;
    add_layout<T>(hash, {EVENKEEL_AT(layout), EVENKEEL_AT(forward), EVENKEEL_AT(backward),
                         EVENKEEL_AT(lay_channels_outermost)});
  }
  {
    using T = ChannelsShape;
    add_layout<T>(hash, {EVENKEEL_AT(batch), EVENKEEL_AT(channels), EVENKEEL_AT(positions), EVENKEEL_AT(last)});
  }
  {
    using T = ChannelsOptions;
    add_layout<T>(hash, {EVENKEEL_AT(groups), EVENKEEL_AT(eps), EVENKEEL_AT(eps_mode), EVENKEEL_AT(weight_offset),
                         EVENKEEL_AT(activation)});
  }
  {
    using T = Values;
    add_layout<T>(hash, {EVENKEEL_AT(data), EVENKEEL_AT(dtype)});
  }
  {
    using T = ChannelsForward;
    add_layout<T>(hash, {EVENKEEL_AT(shape), EVENKEEL_AT(dtype), EVENKEEL_AT(options), EVENKEEL_AT(x), EVENKEEL_AT(y),
                         EVENKEEL_AT(weight), EVENKEEL_AT(bias), EVENKEEL_AT(mean), EVENKEEL_AT(variance),
                         EVENKEEL_AT(mask), EVENKEEL_AT(statistics), EVENKEEL_AT(variances),
                         EVENKEEL_AT(running_mean), EVENKEEL_AT(running_var), EVENKEEL_AT(momentum)});
  }
  {
    using T = ChannelsBackward;
    add_layout<T>(hash, {EVENKEEL_AT(shape), EVENKEEL_AT(dtype), EVENKEEL_AT(options), EVENKEEL_AT(remembered),
                         EVENKEEL_AT(x), EVENKEEL_AT(dy), EVENKEEL_AT(dx), EVENKEEL_AT(weight), EVENKEEL_AT(bias),
                         EVENKEEL_AT(mask), EVENKEEL_AT(statistics), EVENKEEL_AT(dweight), EVENKEEL_AT(dbias)});
  }
#undef EVENKEEL_AT
  return hash;
}

}  // namespace evenkeel

extern "C" __attribute__((visibility("default"))) const evenkeel::DirectChannels* evenkeel_direct_channels();
