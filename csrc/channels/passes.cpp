#include "channels/passes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "channels/geometry.h"
#include "channels/parameters.h"
#include "channels/run.h"
#include "core/caches.h"
#include "core/runtime.h"

namespace evenkeel {
namespace {

const ChannelsKernels& kernels() { return EVENKEEL_BEST(channels_kernels); }
const ChannelsWalk& phases_of(const ChannelsGeometry& g) {
  switch (g.walk) {
    case Walk::columns: return EVENKEEL_BEST(columns_walk);
    case Walk::groups: return EVENKEEL_BEST(groups_walk);
    default: return EVENKEEL_BEST(planes_walk);
  }
}

ChannelsCall call_of(const ChannelsShape& shape, DType dtype, const ChannelsOptions& options, bool remembered,
                     bool masked, bool backward) {
  ChannelsCall a{};
  a.geometry = geometry_of(shape, dtype, options, masked, !remembered, backward);
  // remembered statistics: the order of memory is the fastest
  if (remembered && a.geometry.walk == Walk::planes) {
    ChannelsOptions each = options;
    each.groups = shape.channels;
    a.geometry = geometry_of(shape, dtype, each, masked, false, backward);
  }
  a.dtype = dtype;
  a.options = options;
  a.remembered = remembered;
  return a;
}

// The mask and how much of it is valid.
class Mask {
 public:
  Mask(const uint8_t* mask, const ChannelsShape& shape, ChannelsCall& a) {
    a.mask = mask;
    if (!mask) return;
    counts_.assign(a.geometry.groups ? static_cast<size_t>(shape.batch) : 1, 0);
    uint8_t bits = 0;
    for (int64_t sample = 0; sample < shape.batch; ++sample) {
      int64_t& count = counts_[a.geometry.groups ? static_cast<size_t>(sample) : 0];
      for (int64_t i = 0; i < shape.positions; ++i) {
        const uint8_t byte = mask[sample * shape.positions + i];
        count += byte != 0;
        bits |= byte;
      }
    }
    a.valid = counts_.data();
    if (bits > 1) write_ones(a, shape.batch * shape.positions);
  }

 private:
  // A view of other memory as boolean may hold any byte where it is true.
  void write_ones(ChannelsCall& a, int64_t count) {
    ones_.assign(a.mask, a.mask + count);
    for (uint8_t& byte : ones_) byte = byte != 0;
    a.mask = ones_.data();
  }
  std::vector<uint8_t> ones_;
  std::vector<int64_t> counts_;
};

// A place for results that nobody asks for.
class Place {
 public:
  Place(void* given, int64_t count) : own_(given ? 0 : count), data_(given ? given : own_.data()) {}
  void* data() const { return data_; }

 private:
  const Scratch own_;
  void* const data_;
};

// y from remembered statistics: rows or parts of runs, which any thread may take; the factors are each thread's own.
void write_remembered(ChannelsCall& a, const ChannelsWalk& phases, const Values& mean, const Values& variance) {
  constexpr int64_t part = 16384;
  ChannelsGeometry& g = a.geometry;
  const bool planes = g.walk == Walk::planes;
  g.item_size = part;
  g.parts = ceil_divide(g.positions, part);
  const int64_t items = planes ? g.outer * g.channels * g.parts : g.write_items(0);
  const int64_t size = planes ? std::min(part, g.positions) : g.rows_written * g.width;
  parallel_for(items, std::max<int64_t>(1, part / size), [&](int64_t begin, int64_t end) {
    ChannelsCall own = a;
    const OwnParameters parameters(own);
    const WideValues means(mean, 0, g.channels, 1, 1), variances(variance, 0, g.channels, 1, 1);
    const Scratch factors(factors_of_block(g));
    own.factors = factors.data();
    if (begin > 0) own.statistics = own.variance = nullptr;  // one thread saves them
    own.may_cancel = kernels().remember(own, means.data(), variances.data());
    if (phases.prepare) phases.prepare(own, 0, g.channels);
    phases.write(own, begin, end);
    if (a.streamed) finish_streams();
  });
}

// How many statistics of planes are written together: a sample apart, their runs share cache lines with those beside them,
// and nothing foresees where they lie. Together they are whole lines, and stay in the second-level cache from the first
// pass to the last.
int64_t statistics_together(const ChannelsCall& a, int64_t tensors) {
  constexpr int64_t short_run = 2048, most_elements = 4096;
  const ChannelsGeometry& g = a.geometry;
  const int64_t size = size_of(a.dtype), run = g.positions * size, all = g.channels * g.count * size;
  if (g.walk != Walk::planes || g.groups || a.mask || a.remembered || run >= short_run) return 1;
  // gradients are projected run by run: what they gain from the order are whole lines alone
  if (a.dy && (a.options.activation == Activation::silu || run % cache_line == 0 || all < caches().second)) return 1;
  const int64_t kept = caches().second / (2 * tensors * g.count * size);
  const int64_t most = std::min({kept, most_elements / g.positions, most_together,
                                 g.channels / torch::stable::get_num_threads()});
  const int64_t lines = cache_line / std::gcd(cache_line, run);
  return std::max<int64_t>(1, most >= lines ? most / lines * lines : most);
}

// Memory wants whole rows, one after the other. The factors of a few columns stay in registers for more rows than one:
// worth more where the rows are narrow or near, or where all factors would leave the nearest cache; less where what is
// written leaves the caches in another order than memory's. Rows of whole pages take each other's place in it. With
// AVX2, whose registers are few, several such rows from memory take up to four times as long as one: a store to a row
// keeps back a load from the next at the same place of its page. 16-bit elements, whose conversions need registers too,
// gain by few rows there wherever they lie: by two where what is written leaves the caches, except y in rows of whole pages
// and wide ones, which are written in memory's order.
int64_t rows_at_a_time(const ChannelsCall& a) {
  constexpr int64_t vector = 16, narrow = 64, wide = 512, few = 8, page = 4096;
  const ChannelsGeometry& g = a.geometry;
  const int64_t size = size_of(a.dtype);
  const bool pages = g.width * size % page == 0;
  const bool stays = (a.dy ? 3 : 2) * g.rows * g.width * size <= caches().second;
  if (g.width <= narrow) return a.streamed || (!stays && g.width > vector) ? few : narrow;
  const int64_t several = pages ? few / 2 : few;
  if (stays && !a.dy) return several;
  if (simd() == Simd::avx2) {
    if (size == 2 && a.dy) return a.streamed ? 2 : few / 2;
    if (size == 2) return !a.streamed || pages ? few : g.width <= wide ? 2 : 1;
    if (pages) return a.streamed ? 1 : few / 2;
  }
  const int64_t factors = g.width * (a.dy ? 5 : 3) * (a.dtype == DType::float64 ? 8 : 4);
  return 2 * factors > caches().first ? several : 1;
}

// The ends of runs that are no whole cache lines are stored as usual and wait for memory, the streams behind them too:
// short ones are not streamed, except where one goes on in the next.
bool is_streamed(const ChannelsCall& a, int64_t bytes, int64_t tensors) {
  constexpr int64_t short_run = 1024;  // bytes
  const ChannelsGeometry& g = a.geometry;
  const int64_t run = a.together * g.positions * size_of(a.dtype);
  if (g.turned) return false;  // what is written is a copy in cache
  if (g.walk == Walk::planes && !a.remembered && run < short_run && run % cache_line) return false;
  if (g.walk == Walk::planes && a.remembered && !a.dy) return bytes > cached_output_in_order();
  return is_past_caches(bytes * tensors);
}

// `all`: bytes of the call's tensors. Columns that stay in the caches, whose rows processors foresee, take a tenth longer
// where they are fetched; from a quarter of the caches on up to half of the time less (AVX2).
bool is_fetched(const ChannelsCall& a, int64_t all) {
  if (a.geometry.turned) return false;
  if (a.geometry.walk == Walk::columns) return a.streamed || (simd() == Simd::avx2 && 4 * all > cached_bytes());
  return !a.geometry.groups || all > caches().second;
}

// What depends on the caches. `tensors`: of x's size, that a call reads and writes.
void set_caching(ChannelsCall& a, const ChannelsShape& shape, int64_t tensors) {
  const int64_t bytes = shape.batch * shape.channels * shape.positions * size_of(a.dtype);
  a.together = statistics_together(a, tensors - 1);
  a.streamed = is_streamed(a, bytes, tensors);
  a.fetched = is_fetched(a, bytes * tensors);
  a.rows_at_a_time = rows_at_a_time(a);
}

const DirectChannels direct_channels{
    layout_of_channels(),
    [](const ChannelsForward& a) noexcept { return completes([&] { run_forward(a); }); },
    [](const ChannelsBackward& a) noexcept { return completes([&] { run_backward(a); }); },
    [](const void* from, void* to, const ChannelsShape& shape, DType dtype) noexcept {
      return completes([&] { lay_channels_outermost(from, to, shape, dtype); });
    },
};

}  // namespace

void run_forward(const ChannelsForward& forward) {
  const bool remembered = forward.mean.data;
  ChannelsCall a = call_of(forward.shape, forward.dtype, forward.options, remembered, forward.mask, false);
  const int64_t count = statistics_of(forward.shape, forward.options.groups);
  const ChannelsGeometry& g = a.geometry;
  const Mask valid(forward.mask, forward.shape, a);
  a.x = forward.x;
  a.out = forward.y;
  a.given_weight = forward.weight;
  a.given_bias = forward.bias;
  set_caching(a, forward.shape, 2);
  const ChannelsWalk& phases = phases_of(g);
  if (remembered) {
    a.statistics = forward.statistics;
    a.variance = forward.variances;
    return write_remembered(a, phases, forward.mean, forward.variance);
  }
  const Place statistics(forward.statistics, count * a.statistics_width()), variances(forward.variances, count);
  a.statistics = statistics.data();
  a.variance = variances.data();
  run(a, g.measure_items, measure_partial(g),
      {nullptr, phases.measure, phases.merge, phases.write, kernels().repair});
  if (!forward.running_mean.data) return;
  ChannelsForward found = forward;
  found.statistics = a.statistics;
  found.variances = a.variance;
  update_running(found);
}

void run_backward(const ChannelsBackward& backward) {
  ChannelsCall a =
      call_of(backward.shape, backward.dtype, backward.options, backward.remembered, backward.mask, true);
  divide_runs(a.geometry);
  const ChannelsGeometry& g = a.geometry;
  const Mask valid(backward.mask, backward.shape, a);
  const Scratch sums(2 * g.lanes()), means(g.walk == Walk::groups ? 0 : 2 * g.statistics);
  a.x = backward.x;
  a.dy = backward.dy;
  a.out = backward.dx;
  a.given_weight = backward.weight;
  a.given_bias = backward.bias;
  a.statistics = const_cast<void*>(backward.statistics);
  set_caching(a, backward.shape, 3);
  a.sums = sums.data();
  a.products = a.sums + g.lanes();
  a.means = means.data();
  const ChannelsWalk& phases = phases_of(g);
  const bool sum = backward.dweight.data || backward.dbias.data || !backward.remembered;
  run(a, g.sum_items, sum_partial(g),
      {phases.prepare, sum ? phases.sum : nullptr, sum ? phases.merge_sums : nullptr,
       backward.dx && !(sum && writes_with_sums(a)) ? phases.write_gradient : nullptr, kernels().repair_gradient});
  int which = 0;
  for (const Values& gradient : {backward.dbias, backward.dweight}) {
    if (gradient.data) kernels().finish(a, which, g.channels, gradient.dtype, gradient.data);
    ++which;
  }
}

void update_running(const ChannelsForward& a) {
  const double count = static_cast<double>(a.shape.batch * a.shape.positions);
  const int64_t width = statistics_width(a.options.eps_mode);
  kernels().move(a.running_mean, a.statistics, width, a.dtype, a.shape.channels, a.momentum, 1.0);
  kernels().move(a.running_var, a.variances, 1, a.dtype, a.shape.channels, a.momentum, count / (count - 1));
}

}  // namespace evenkeel

const evenkeel::DirectChannels* evenkeel_direct_channels() { return &evenkeel::direct_channels; }
