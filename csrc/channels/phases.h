// The phases of a walk: instances for dtypes, activations and masks; prefetching.
#pragma once

#include "channels/activation.h"
#include "channels/affine.h"
#include "core/lines.h"

namespace evenkeel::EVENKEEL_ISA {

// elements ahead of what is read and written now: no processor fetches the lines of an output ahead
constexpr int64_t soon = 1024;

// Where everything is valid.
struct AllLanes {
  template <class At, class V>
  V keep(const At& at, V v) const {
    return at.keep(v);
  }
};

// A run of the mask, or null where everything is valid.
struct ValidLanes {
  const uint8_t* mask;

  template <class C>
  Vector<C> keep(const Whole<C>& at, Vector<C> v) const {
    return mask ? keep_lanes<C>(v, lanes<C>(at.i, Lanes<C>::width)) : v;
  }
  template <class C>
  Vector<C> keep(const Rest<C>& at, Vector<C> v) const {
    return mask ? keep_lanes<C>(v, lanes<C>(at.i, at.count)) : at.keep(v);
  }
  int64_t count(int64_t n) const {
    int64_t valid = 0;
    for (int64_t i = 0; i < n; ++i) valid += mask[i];
    return valid;
  }

 private:
  template <class C>
  LaneMask<C> lanes(int64_t i, int count) const {
    VectorOf<uint8_t, Lanes<C>::width> bytes = {};
    std::memcpy(&bytes, mask + i, count);
    return -convert<LaneMask<C>>(bytes);
  }
};

// What is written meanwhile where a gradient is summed.
struct NothingWritten {
  template <class... Arguments>
  void operator()(const Arguments&...) const {}
};

// The activation known at compile time; without extras there is none.
template <bool extras, class Body>
inline void with_activation_of(const ChannelsCall& a, const Body& body) {
  if constexpr (extras) {
    with_activation(a.options.activation, body);
  } else {
    body(std::integral_constant<Activation, Activation::none>{});
  }
}

// Calls body with whether something holds as a type: a test for each vector takes 5 to 10 % of the time.
template <class Body>
EVENKEEL_INLINE void with_known(bool holds, const Body& body) {
  holds ? body(std::true_type{}) : body(std::false_type{});
}

// Calls body(value of x's type, whether there is a mask or an activation or few elements, as a type).
template <class Body>
void with_dtype_and_extras(const ChannelsCall& a, const Body& body) {
  with_floating(a.dtype, [&](auto t) {
    if (!a.mask && a.options.activation == Activation::none && !has_few_elements(a, 0)) {
      body(t, std::false_type{});
    } else {
      body(t, std::true_type{});
    }
  });
}

}  // namespace evenkeel::EVENKEEL_ISA

// A phase of a table: calls a template for [begin, end), or for each of these.
#define EVENKEEL_PHASE(range)                                        \
  [](const ChannelsCall& a, int64_t begin, int64_t end) {            \
    with_dtype_and_extras(a, [&](auto t, auto extras) {              \
      range<decltype(t), decltype(extras)::value>(a, begin, end);    \
    });                                                              \
  }
#define EVENKEEL_PHASE_OF_EACH(one)                                  \
  [](const ChannelsCall& a, int64_t begin, int64_t end) {            \
    with_dtype_and_extras(a, [&](auto t, auto extras) {              \
      for (int64_t i = begin; i < end; ++i) one<decltype(t), decltype(extras)::value>(a, i); \
    });                                                              \
  }
