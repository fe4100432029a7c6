#include "runtime.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "operators.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
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

// Large outputs come from fresh pages, and the page faults of small ones cost several times what the kernel does.
void advise_huge_pages(void* data, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr int64_t threshold = int64_t{4} << 20, page = 4096;
  if (bytes < threshold) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // only advice: a refusal changes nothing
#else
  (void)data, (void)bytes;
#endif
}

}  // namespace

Tensor empty(const std::vector<int64_t>& sizes, ScalarType dtype) {
  std::vector<int64_t> strides(sizes.size());
  int64_t count = 1;
  for (size_t axis = sizes.size(); axis-- > 0;) {
    strides[axis] = count;
    count *= sizes[axis] > 0 ? sizes[axis] : 1;
  }
  AtenTensorHandle handle;
  const int32_t type = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), type,
                                                  aoti_torch_device_type_cpu(), 0, &handle));
  Tensor result(handle);
  const int64_t width = dtype == ScalarType::Double ? 8 : dtype == ScalarType::Float ? 4 : 2;
  advise_huge_pages(result.data_ptr(), count * width);
  return result;
}

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
