// The environment variables that hold numbers.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

namespace evenkeel {

struct Setting {
  const char *name, *expected;
  int count;  // of whole numbers, with commas between them
};

constexpr Setting pool_setting{"EVENKEEL_POOL_MB", "a whole number of megabytes, such as 256", 1};
constexpr Setting cache_setting{"EVENKEEL_CACHE_KB",
                                "the first-, second- and third-level cache in kilobytes, such as 48,2048,16384", 3};

// Fills in a setting's numbers; false where it is unset, empty or malformed.
bool read_setting(const Setting& setting, int64_t* numbers);

// The first variable whose value cannot be used, and what is expected there; empty where all can.
std::tuple<std::string, std::string> refused_setting();

}  // namespace evenkeel
