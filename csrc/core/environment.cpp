#include "core/environment.h"

#include <cctype>
#include <cstdlib>

#include "core/runtime.h"

namespace evenkeel {
namespace {

bool is_set(const char* name) {
  const char* const value = std::getenv(name);
  return value && *value;
}

}  // namespace

bool read_setting(const Setting& setting, int64_t* numbers) {
  constexpr int64_t most = int64_t{1} << 40;  // in bytes it still fits
  const char* next = std::getenv(setting.name);
  for (int i = 0; i < setting.count; ++i) {
    if (!next || !std::isdigit(static_cast<unsigned char>(*next))) return false;
    char* end = nullptr;
    numbers[i] = std::strtoll(next, &end, 10);
    if (*end != (i + 1 < setting.count ? ',' : '\0') || numbers[i] > most) return false;
    next = end + 1;
  }
  return true;
}

std::tuple<std::string, std::string> refused_setting() {
  int64_t numbers[3];
  for (const Setting& each : {pool_setting, cache_setting}) {
    if (is_set(each.name) && !read_setting(each, numbers)) return {each.name, each.expected};
  }
  if (is_set(simd_variable) && !names_simd(std::getenv(simd_variable))) {
    return {simd_variable, simd_names()};
  }
  return {};
}

}  // namespace evenkeel
