#include "core/caches.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <thread>

#include "core/environment.h"
#include "core/types.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <unistd.h>
#endif

namespace evenkeel {
namespace {

constexpr int64_t kilobyte = 1024, megabyte = kilobyte * 1024;

// Where a processor says nothing: what most have.
constexpr Caches usual{32 * kilobyte, megabyte, 16 * megabyte, 16 * megabyte, 4, "assumed"};

[[maybe_unused]] int64_t processors() { return std::max<int64_t>(1, std::thread::hardware_concurrency()); }

#if defined(__x86_64__)

// A virtual machine is told of the socket's whole cache, which it shares with others: no processor of a server has more
// than some MB for each of its cores.
constexpr int64_t most_of_a_guest = 8 * megabyte;

bool is_guest() {
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 31);
}

// Leaf 4 of Intel's, 0x8000001D of AMD's: one cache a subleaf, the same fields. None where there is no such leaf.
Caches read(unsigned leaf) {
  Caches found{0, 0, 0, 0, 1, leaf == 4 ? "CPUID leaf 4" : "CPUID leaf 0x8000001D"};
  int64_t sharing_second = 1;
  for (unsigned index = 0; index < 8; ++index) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(leaf, index, &a, &b, &c, &d) || (a & 31) == 0) break;
    if ((a & 31) == 2) continue;  // of instructions
    const int64_t size = int64_t{(b >> 22) + 1} * (((b >> 12) & 0x3ff) + 1) * ((b & 0xfff) + 1) * (int64_t{c} + 1);
    const int64_t sharing = std::min<int64_t>(((a >> 14) & 0xfff) + 1, processors());  // rounded up to a power of two
    switch ((a >> 5) & 7) {
      case 1: found.first = size; break;
      case 2: found.second = size, sharing_second = sharing; break;
      case 3: found.third = size, found.cores = std::max<int64_t>(1, sharing / sharing_second); break;
    }
  }
  found.whole_third = found.third;
  if (is_guest()) found.third = std::min(found.third, found.cores * most_of_a_guest);
  return found;
}

Caches read() {
  const Caches intel = read(4);  // AMD's leaf 4 is empty
  return intel.first ? intel : read(0x8000001D);
}

#elif defined(__APPLE__)

int64_t ask(const char* name) {
  int64_t value = 0;
  size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 ? value : 0;
}

Caches read() {
  const int64_t sharing = std::max<int64_t>(1, ask("hw.perflevel0.cpusperl2"));
  return {ask("hw.perflevel0.l1dcachesize"), ask("hw.perflevel0.l2cachesize") / sharing, 0, 0, sharing, "sysctl"};
}

#elif defined(__linux__) && defined(_SC_LEVEL1_DCACHE_SIZE)

Caches read() {
  const auto ask = [](int name) { return std::max<int64_t>(0, sysconf(name)); };
  const int64_t third = ask(_SC_LEVEL3_CACHE_SIZE);
  return {ask(_SC_LEVEL1_DCACHE_SIZE), ask(_SC_LEVEL2_CACHE_SIZE), third, third, processors(), "sysconf"};
}

#else

Caches read() { return usual; }

#endif

Caches choose() {
  const Caches found = read(), known = found.first && found.second ? found : usual;
  int64_t given[3];
  if (!read_setting(cache_setting, given)) return known;
  const int64_t third = given[2] * kilobyte;
  return {given[0] * kilobyte, given[1] * kilobyte, third, third, known.cores, cache_setting.name};
}

int64_t threads() { return std::max<int64_t>(1, torch::stable::get_num_threads()); }

// Of that many threads: each has a second-level cache, as many as there are cores share a third-level one.
int64_t of_threads(int64_t count, int64_t third) {
  const Caches& c = caches();
  return count * c.second + ceil_divide(count, c.cores) * third;
}

}  // namespace

const Caches& caches() {
  static const Caches of_this_processor = choose();
  return of_this_processor;
}

int64_t cached_bytes() { return of_threads(threads(), caches().third); }

int64_t cached_output_in_order() {
#if defined(__x86_64__)
  // Alone, a core stores past the caches as fast as into them: what it writes there pays for so much at the most.
  constexpr int64_t most_of_a_thread = 16 * megabyte;
  static const bool is_amd = __builtin_cpu_is("amd");
  const int64_t count = threads(), whole = of_threads(count, caches().whole_third);
  if (is_amd) return std::min(count * (caches().second + most_of_a_thread), whole);
#endif
  return cached_bytes() / 2;
}

bool is_past_caches(int64_t bytes) { return bytes > caches().second && bytes > cached_bytes(); }

}  // namespace evenkeel
