#include "channels/run.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "channels/parameters.h"
#include "core/runtime.h"

namespace evenkeel {
namespace {

constexpr int64_t grain = 16384;  // elements that are worth a thread

int64_t opmath_size(DType dtype) { return dtype == DType::float64 ? sizeof(double) : sizeof(float); }

const ChannelsKernels& kernels() { return EVENKEEL_BEST(channels_kernels); }

// Doubles' places for a block's gradients after the activation, which are kept from the sums to dx where that takes
// less time: floats that stay in cache, and all that are computed in double.
int64_t kept_size(const ChannelsCall& a) {
  const ChannelsGeometry& g = a.geometry;
  if (!a.dy || !a.out || a.remembered || a.options.activation != Activation::silu) return 0;
  if (g.small) return 0;
  if (g.innermost) return padded(g.channels / g.groups) * g.positions * groups_together(g);
  if (g.walk == Walk::planes) return 4 * g.count * opmath_size(a.dtype) <= caches().second ? g.count : 0;
  const int64_t size = g.rows * kept_stride(g);
  return g.walk == Walk::columns && g.count <= computed_in_double && size <= caches().second ? size : 0;
}

int64_t factors_of(const ChannelsGeometry& g) { return g.walk == Walk::planes ? 0 : factors_of_block(g); }

char* bytes_of(const Scratch& scratch) { return reinterpret_cast<char*>(scratch.data()); }

int64_t block_size(const ChannelsGeometry& g) { return std::max<int64_t>(1, g.count * g.statistics_per_block); }

int64_t threads_for(int64_t elements) {
  return std::clamp<int64_t>(elements / grain, 1, torch::stable::get_num_threads());
}

// Blocks that go through a phase before the next one begins: what a phase takes beside its work is paid once for all that
// the nearest cache holds.
int64_t blocks_at_once(const ChannelsCall& a) {
  const ChannelsGeometry& g = a.geometry;
  if (g.walk != Walk::planes || a.together > 1 || kept_size(a)) return a.together;
  const int64_t tensors = a.dy ? 3 : 2;
  return std::max<int64_t>(1, caches().first / (tensors * block_size(g) * size_of(a.dtype)));
}

// All phases of some blocks by one thread, whose cache then holds each of them from the first phase to the last.
void run_alone(const ChannelsCall& a, int64_t begin, int64_t end, int64_t items, int64_t partial,
               const ChannelsPhases& phases) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t per_block = g.statistics_per_block, written = g.write_items(items);
  const int64_t at_once = std::min(blocks_at_once(a), end - begin);
  const Scratch sums(at_once * items * partial), factors(factors_of(g)), kept(kept_size(a));
  ChannelsCall own = a;
  const OwnParameters parameters(own);
  own.partial = sums.data();
  own.factors = factors.data();
  own.kept = kept.data();
  const auto over = [&](ChannelsPhase phase, int64_t first, int64_t last) {
    if (phase) phase(own, first, last);
  };
  for (int64_t block = begin, next; block < end; block = next) {
    next = std::min(block + at_once, end);
    own.first_block = block;
    own.is_first = block == begin;
    own.first_item = block * items;
    // what follows the last block is another thread's
    own.fetched = a.fetched && (g.walk == Walk::columns || next < end);
    const int64_t first = block * per_block, last = std::min(next * per_block, g.statistics);
    const int64_t last_item = g.walk == Walk::groups ? last : next * items;
    over(phases.prepare, first, last);
    over(phases.measure, own.first_item, last_item);
    over(phases.merge, first, last);
    over(phases.write, block * written, next * written);
    over(phases.repair, first, last);
  }
  if (a.streamed) finish_streams();
}

void run_blocks(const ChannelsCall& a, int64_t items, int64_t partial, const ChannelsPhases& phases) {
  const ChannelsGeometry& g = a.geometry;
  parallel_for(g.blocks, ceil_divide(grain, block_size(g)), [&](int64_t begin, int64_t end) {
    run_alone(a, begin, end, items, partial, phases);
  });
}

// A block's lanes from one on as a call of its own.
ChannelsCall part_of(const ChannelsCall& a, int64_t block, int64_t first, int64_t lanes) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t size = size_of(a.dtype), number = opmath_size(a.dtype);
  const int64_t element = block * g.rows * g.row_stride + first * g.per_channel;
  const int64_t statistic = block * g.statistics_per_block + first / g.fold, lane = block * g.lanes_of_row + first;
  const auto on = [](auto* data, int64_t bytes) {
    return data ? reinterpret_cast<decltype(data)>(reinterpret_cast<uintptr_t>(data) + bytes) : nullptr;
  };
  ChannelsCall own = a;
  own.x = on(a.x, element * size);
  own.dy = on(a.dy, element * size);
  own.out = on(a.out, element * size);
  own.mask = on(a.mask, block * g.rows);
  if (g.groups) own.valid = on(a.valid, block * sizeof(*a.valid));
  for (Values* given : {&own.given_weight, &own.given_bias}) given->data = on(given->data, first * size_of(given->dtype));
  own.statistics = on(a.statistics, statistic * a.statistics_width() * number);
  own.variance = on(a.variance, statistic * number);
  own.sums = on(a.sums, lane * sizeof(double));
  own.products = on(a.products, lane * sizeof(double));
  own.means = on(a.means, 2 * statistic * sizeof(double));
  ChannelsGeometry& part = own.geometry;
  part.outer = part.blocks = 1;
  part.lanes_of_row = lanes;
  part.width = lanes * g.per_channel;
  part.strips = ceil_divide(lanes, g.lanes_of_strip);
  part.statistics = part.statistics_per_block = lanes / g.fold;
  part.measure_items = part.sum_items = ceil_divide(g.rows, g.item_size) * part.strips;
  return own;
}

// Lanes that one thread takes of each block, whole cache lines in every row: such that all threads have equally much to
// do. 0 where that cannot be, or where the sums of a part would not be added as those of the whole. Processors fetch
// ahead what another core writes then, at the end of each row: so long rows, or few that stay in a cache; or such as are
// computed for so long that it is of no account.
int64_t lanes_of_part(const ChannelsCall& a) {
  constexpr int64_t shortest = 512, short_row = 1024, long_row = 8192, bytes_to_a_row = 20;
  const ChannelsGeometry& g = a.geometry;
  if (g.walk != Walk::columns || g.repeat > 1) return 0;
  if (g.lanes_of_strip % g.fold && g.fold % g.lanes_of_strip) return 0;
  const int64_t element = size_of(a.dtype), line = cache_line / element;
  const int64_t unit = std::lcm(g.fold, line / std::gcd(line, g.per_channel));
  const int64_t size = block_size(g) * g.blocks, threads = threads_for(size);
  const int64_t parts = threads / std::gcd(threads, g.blocks);
  const int64_t lanes = ceil_divide(ceil_divide(g.lanes_of_row, parts), unit) * unit;
  if (g.blocks * ceil_divide(g.lanes_of_row, lanes) < threads) return 0;
  const int64_t row = lanes * g.per_channel * element, tensors = a.dy ? 3 : 2;
  const bool stays = 2 * tensors * size / threads * element <= caches().second;
  const bool computes_long = a.dy && g.count <= computed_in_double;
  const bool is_alone = computes_long ? row >= shortest : stays && row >= std::max(short_row, bytes_to_a_row * g.rows);
  return row >= long_row || is_alone ? lanes : 0;
}

// With few blocks of columns: parts of them.
void run_parts(const ChannelsCall& a, int64_t lanes, int64_t partial, const ChannelsPhases& phases) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t parts = ceil_divide(g.lanes_of_row, lanes), size = lanes * g.per_channel * g.rows;
  parallel_for(g.outer * parts, ceil_divide(grain, size), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % parts * lanes;
      const ChannelsCall own = part_of(a, i / parts, first, std::min(lanes, g.lanes_of_row - first));
      run_alone(own, 0, 1, own.geometry.measure_items, partial, phases);
    }
  });
}

// Channels of all samples turned, so that they lie innermost: as many at a time as stay near.
void run_turned(const ChannelsCall& a, int64_t partial, const ChannelsPhases& phases) {
  constexpr int64_t most = 256, vector = 16;
  const ChannelsGeometry& g = a.geometry;
  const int64_t size = size_of(a.dtype), column = g.positions * size, batch = g.count / g.positions;
  const int64_t of_thread = ceil_divide(g.channels, threads_for(g.channels * g.count) * vector) * vector;
  const int64_t together = g.repeat > 1 ? g.channels : std::min(of_thread, most);
  parallel_for(ceil_divide(g.channels, together), ceil_divide(grain, together * g.count), [&](int64_t begin, int64_t end) {
    const int64_t room = ceil_divide(together * batch * column, sizeof(double));
    const Scratch x(room), dy(a.dy ? room : 0), out(a.out ? room : 0);
    for (int64_t first = begin * together; first < std::min(end * together, g.channels); first += together) {
      const int64_t count = std::min(together, g.channels - first);
      const auto for_each_sample = [&](const auto& body) {
        for (int64_t i = 0; i < batch; ++i) body((i * g.channels + first) * column, i * count * column);
      };
      const auto read = [&](const void* tensor, const Scratch& to) {
        for_each_sample([&](int64_t from, int64_t at) {
          kernels().turn(static_cast<const char*>(tensor) + from, bytes_of(to) + at, size, 1, count, g.positions);
        });
        return to.data();
      };
      ChannelsCall own = count == g.channels ? a : part_of(a, 0, first, count);
      own.geometry.turned = false;
      own.geometry.row_stride = own.geometry.lanes_of_row;
      own.x = read(a.x, x);
      if (a.dy) own.dy = read(a.dy, dy);
      if (a.out) own.out = out.data();
      run_alone(own, 0, 1, own.geometry.measure_items, partial, phases);
      if (!a.out) continue;
      for_each_sample([&](int64_t to, int64_t at) {
        kernels().turn(bytes_of(out) + at, static_cast<char*>(a.out) + to, size, 1, g.positions, count);
      });
    }
  });
}

// With few blocks: all threads on one phase after the other.
void run_phases(ChannelsCall a, int64_t items, int64_t partial, const ChannelsPhases& phases) {
  const ChannelsGeometry& g = a.geometry;
  const int64_t size = block_size(g), written = g.write_items(items);
  const Scratch sums(g.blocks * items * partial), factors(g.blocks * factors_of(g));
  a.together = 1;
  a.partial = sums.data();
  a.factors = factors.data();
  const auto over = [&](ChannelsPhase phase, int64_t count, int64_t per_chunk) {
    if (!phase) return;
    parallel_for(count, std::max<int64_t>(1, per_chunk), [&](int64_t begin, int64_t end) {
      ChannelsCall own = a;
      const OwnParameters parameters(own);
      phase(own, begin, end);
    });
  };
  // the last item first: of what was measured it is the likeliest to be in cache still
  const auto back_over = [&](ChannelsPhase phase, int64_t count, int64_t per_chunk) {
    if (!phase) return;
    parallel_for(count, std::max<int64_t>(1, per_chunk), [&](int64_t begin, int64_t end) {
      ChannelsCall own = a;
      const OwnParameters parameters(own);
      for (int64_t item = end; item-- > begin;) phase(own, item, item + 1);
      if (a.streamed) finish_streams();
    });
  };
  const int64_t statistics_per_chunk = grain / std::max<int64_t>({g.count / 64, 4 * g.fold, 1});
  over(phases.prepare, g.statistics, statistics_per_chunk);
  over(phases.measure, g.blocks * items, grain / ceil_divide(size, items));
  over(phases.merge, g.statistics, statistics_per_chunk);
  back_over(phases.write, g.blocks * written, grain / ceil_divide(size, written));
  over(phases.repair, g.statistics, statistics_per_chunk);
}

}  // namespace

void run(const ChannelsCall& a, int64_t items, int64_t partial, const ChannelsPhases& phases) {
  // so many that no thread waits long for the last one
  const int64_t many_blocks = std::min<int64_t>(16, 4 * torch::stable::get_num_threads());
  const ChannelsGeometry& g = a.geometry;
  if (g.turned) return run_turned(a, partial, phases);
  const bool same = g.blocks % threads_for(block_size(g) * g.blocks) == 0;
  if (g.walk == Walk::groups || g.blocks >= many_blocks || same) return run_blocks(a, items, partial, phases);
  const int64_t lanes = lanes_of_part(a);
  lanes ? run_parts(a, lanes, partial, phases) : run_phases(a, items, partial, phases);
}

// A panel of positions at a time, turned in cache: torch's copy, a channel after the other, takes several times as long.
void lay_channels_outermost(const void* from, void* to, const ChannelsShape& shape, DType dtype) {
  constexpr int64_t panel = 1 << 17;  // bytes
  const int64_t size = size_of(dtype), row = shape.channels * size, column = shape.positions * size;
  const int64_t line = cache_line / size;  // rows by whole lines of what is written
  const int64_t rows = std::min(std::max(panel / row / line, int64_t{1}) * line, shape.positions);
  const int64_t panels = ceil_divide(shape.positions, rows);
  parallel_for(shape.batch * panels, ceil_divide(grain, rows * shape.channels), [&](int64_t begin, int64_t end) {
    const Scratch turned(ceil_divide(rows * row, sizeof(double)));
    const char* const columns = reinterpret_cast<const char*>(turned.data());
    for (int64_t item = begin; item < end; ++item) {
      const int64_t sample = item / panels, first = item % panels * rows, some = std::min(rows, shape.positions - first);
      kernels().turn(static_cast<const char*>(from) + (sample * shape.positions + first) * row, turned.data(), size, 1,
                     some, shape.channels);
      char* const out = static_cast<char*>(to) + sample * shape.positions * row + first * size;
      for (int64_t c = 0; c < shape.channels; ++c) {
        std::memcpy(out + c * column, columns + c * some * size, static_cast<size_t>(some * size));
      }
    }
  });
}

}  // namespace evenkeel
