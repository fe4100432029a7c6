// Counting the members of a struct, so that the compiler asks for those that were forgotten.
#pragma once

#include <cstddef>

namespace evenkeel {

// How many values an aggregate is made of.
struct Anything {
  template <class T>
  operator T() const;
};
template <class T, class... Values>
constexpr size_t count_members() {
  if constexpr (requires { T{Values{}..., Anything{}}; }) {
    return count_members<T, Values..., Anything>();
  } else {
    return sizeof...(Values);
  }
}

}  // namespace evenkeel
