// The parameters of a channel operator as its kernels read them.
#pragma once

#include <algorithm>

#include "channels/kernels.h"
#include "core/runtime.h"
#include "core/scratch.h"

namespace evenkeel {

// values + offset in double, for every channel, lane or column: the sum of a weight and an offset is not rounded. A
// vector's length further it may be read.
class WideValues {
 public:
  // `each` times in a row, and the whole `times` times
  WideValues(const Values& values, double offset, int64_t channels, int64_t each, int64_t times)
      : wide_(values.data ? channels * each * times + vector : 0) {
    if (!values.data) return;
    EVENKEEL_BEST(channels_kernels).widen(values.data, values.dtype, offset, channels, each, times, wide_.data());
    std::fill_n(wide_.data() + channels * each * times, vector, 0.0);
  }
  const double* data() const { return wide_.data(); }

 private:
  static constexpr int64_t vector = 16;
  const Scratch wide_;
};

// A thread's own, and its call with them: what another core wrote last takes it longer to read than to compute.
class OwnParameters {
 public:
  explicit OwnParameters(ChannelsCall& own)
      : weight_(of(own, own.given_weight, own.options.weight_offset)), bias_(of(own, own.given_bias, 0)) {
    own.weight = weight_.data();
    own.bias = bias_.data();
    own.smallest_weight = own.largest_weight = 1;
    if (!own.weight || own.remembered || !has_scales(own)) return;
    double smallest, largest;
    const int64_t each = weights_of_channel(own.geometry), count = channels_of(own.geometry) * each;
    EVENKEEL_BEST(channels_kernels).bound(own.weight, count, each, &smallest, &largest);
    if (largest == 0) return;
    own.smallest_weight = smallest;
    own.largest_weight = largest;
  }

 private:
  static int64_t channels_of(const ChannelsGeometry& g) {
    return g.walk == Walk::columns ? g.lanes_of_row / g.repeat : g.channels;
  }
  static WideValues of(const ChannelsCall& a, const Values& values, double offset) {
    const ChannelsGeometry& g = a.geometry;
    return {values, offset, channels_of(g), weights_of_channel(g), g.repeat};
  }
  const WideValues weight_, bias_;
};

}  // namespace evenkeel
