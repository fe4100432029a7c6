// The caches of this processor, for what depends on their size: what is written past them, how many rows are taken at a
// time. No result depends on these: what orders a sum is a constant.
#pragma once

#include <cstdint>

namespace evenkeel {

constexpr int64_t cache_line = 64;  // bytes

struct Caches {
  int64_t first, second;  // bytes of a core's own, or of its share
  int64_t third;          // bytes of one third-level cache that this process may count on; 0 for none
  int64_t whole_third;    // bytes of it, with what neighbours on the same machine may take
  int64_t cores;          // that share it
  const char* source;
};

const Caches& caches();

// Bytes that the caches keep of a call with as many threads as torch has.
int64_t cached_bytes();

// Bytes of an output that stay in them where a call goes once through its input and its output, in the order of memory,
// as BatchNorm does in inference. Measured on AMD, where that is more than of other calls; not on Intel.
int64_t cached_output_in_order();

// Whether a call that reads and writes this many bytes stores past the caches: its output would not stay in them for
// the next reader, and an ordinary store first reads the line that it overwrites.
bool is_past_caches(int64_t bytes);

}  // namespace evenkeel
