#include "runtime.h"

#include <cstring>
#include <string>

#include "operators.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace evenkeel {
namespace {

bool forked = false;

const bool watches_forks = [] {
#if defined(__unix__) || defined(__APPLE__)
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
#endif
  return true;
}();

Simd best_simd() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return Simd::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    return Simd::avx2;
  }
#endif
  return Simd::baseline;
}

}  // namespace

bool in_forked_child() { return watches_forks && forked; }

const char* simd_name(Simd level) {
  return level == Simd::avx512 ? "avx512" : level == Simd::avx2 ? "avx2" : "baseline";
}

Simd simd() {
  static const Simd chosen = [] {
    const Simd best = best_simd();
    const char* wanted = std::getenv("EVENKEEL_SIMD");
    for (Simd level : {Simd::baseline, Simd::avx2, Simd::avx512}) {
      if (wanted && std::strcmp(wanted, simd_name(level)) == 0 && level <= best) return level;
    }
    return best;
  }();
  return chosen;
}

std::string simd_level() { return simd_name(simd()); }

}  // namespace evenkeel
