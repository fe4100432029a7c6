#include "core/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "core/level.h"

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

// Whether this processor runs a level, and the library has it.
bool has(Simd level) {
  switch (level) {
#if defined(__x86_64__)
    case Simd::avx512:
      return &avx512::is_built && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    case Simd::avx2:
      return &avx2::is_built && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
#else
    case Simd::baseline: return true;
#endif
    default: return level == Simd::none;
  }
}

const char* simd_name(Simd level) {
  constexpr const char* names[] = {"none", "baseline", "avx2", "avx512"};
  return names[static_cast<int>(level)];
}

#if defined(__x86_64__)
constexpr Simd levels[] = {Simd::none, Simd::avx2, Simd::avx512};
#else
constexpr Simd levels[] = {Simd::none, Simd::baseline};
#endif

}  // namespace

bool names_simd(const char* name) {
  return std::any_of(std::begin(levels), std::end(levels),
                     [&](Simd each) { return std::strcmp(name, simd_name(each)) == 0; });
}

std::string simd_names() {
  std::string names;
  for (Simd each : levels) names += (names.empty() ? "" : " or ") + std::string(simd_name(each));
  return names;
}

bool in_forked_child() { return watches_forks && forked; }

DType dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return DType::float32;
    case ScalarType::Double: return DType::float64;
    case ScalarType::BFloat16: return DType::bfloat16;
    case ScalarType::Half: return DType::float16;
    case ScalarType::Byte:
    case ScalarType::Bool: return DType::uint8;
    case ScalarType::Char: return DType::int8;
    case ScalarType::Short: return DType::int16;
    case ScalarType::UInt16: return DType::uint16;
    case ScalarType::Int: return DType::int32;
    case ScalarType::Long: return DType::int64;
    default: STD_TORCH_CHECK(false, "evenkeel: expected a real dtype");
  }
}

Simd simd() {
  static const Simd level = [] {
    const char* name = std::getenv(simd_variable);
    Simd best = Simd::none;
    for (Simd each : levels) {
      if (!has(each)) continue;
      if (name && std::strcmp(name, simd_name(each)) == 0) return each;
      best = each;
    }
    return best;
  }();
  return level;
}

bool fetches_ahead(int64_t run_bytes, bool apart) {
#if defined(__x86_64__)
  constexpr int64_t short_run = 512;
  static const bool is_intel = __builtin_cpu_is("intel");
  return simd() == Simd::avx2 || (!is_intel && (apart || run_bytes >= short_run));
#else
  (void)run_bytes, (void)apart;
  return false;
#endif
}

std::string simd_level() { return simd_name(simd()); }

}  // namespace evenkeel
