// Maps of the columns of tables. Compiled once per instruction set.
#include <limits>

#include "columns/kernels.h"
#include "core/numbers.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

inline Doubles larger(Doubles a, Doubles b) { return choose(a > b, a, b); }
inline Doubles magnitude(Doubles v) {
  return keep_lanes<double>(v, LaneMask<double>{} + std::numeric_limits<int64_t>::max());
}

template <class From, class To>
bool map_elements(const ColumnMap& a, const From* x, To* y, int64_t n, int64_t phase) {
  constexpr bool can_be_infinite = is_float<From> || std::is_same_v<From, double>;
  const Doubles low = Doubles{} + a.low, high = Doubles{} + a.high;
  Doubles largest = {};  // NaN is never larger
  const auto mapped = [&](const From* from, Doubles (&v)[2]) {
    load_doubles(from, v);
    for (int i = 0; i < 2; ++i) {
      if constexpr (can_be_infinite) largest = larger(magnitude(v[i]), largest);
      const int64_t at = phase + 8 * i;
      v[i] = (v[i] - load(a.shift + at)) * load(a.scale + at) + load(a.offset + at);
      if (a.clip) v[i] = choose(v[i] < low, low, choose(v[i] > high, high, v[i]));
    }
  };
  const auto move_on = [&](int64_t count) {
    phase += count;
    if (phase >= a.period) phase -= a.period;  // a period has 16 elements at least
  };
  const auto few = [&](int64_t i, int64_t count) {
    From from[16] = {};
    To to[16];
    Doubles v[2];
    std::memcpy(from, x + i, count * sizeof(From));
    mapped(from, v);
    store_doubles(to, v);
    std::memcpy(y + i, to, count * sizeof(To));
    move_on(count);
  };
  int64_t i = 0;
  if (a.stream && reinterpret_cast<uintptr_t>(y) % sizeof(To) == 0) {
    const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) / sizeof(To) % 16);
    const int64_t head = past ? 16 - past : 0;
    if (head && head <= n) few(0, head), i = head;
    for (; i + 16 <= n; i += 16) {
      Doubles v[2];
      mapped(x + i, v);
      stream_doubles(y + i, v);
      move_on(16);
    }
    finish_streams();
  }
  for (; i + 16 <= n; i += 16) {
    Doubles v[2];
    mapped(x + i, v);
    store_doubles(y + i, v);
    move_on(16);
  }
  if (i < n) few(i, n - i);
  bool infinite = false;
  for (int lane = 0; lane < 8; ++lane) infinite |= largest[lane] == infinity;
  return infinite;
}

bool map(const ColumnMap& a, const void* x, void* y, int64_t n, int64_t phase) {
  bool infinite = false;
  with_number(a.from, [&](auto from) {
    with_floating(a.to, [&](auto to) {
      infinite = map_elements(a, static_cast<const decltype(from)*>(x), static_cast<decltype(to)*>(y), n, phase);
    });
  });
  return infinite;
}

}  // namespace

const ColumnMapKernel column_map_kernel = map;

}  // namespace evenkeel::EVENKEEL_ISA
