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

// Adds where the members of a struct lie, in the order of their names here, to a hash.
template <class T, size_t count>
constexpr void add_layout(size_t& hash, const size_t (&offsets)[count]) {
  static_assert(count == count_members<T>() || requires { T::max_axes; }, "a member is missing");
  for (const size_t offset : offsets) hash = (hash ^ offset) * 1099511628211u;
  hash = (hash ^ sizeof(T)) * 1099511628211u;
}

}  // namespace evenkeel
