// The sums of a gradient's short runs, in floats: of several at once.
#pragma once

#include "channels/affine.h"
#include "core/caches.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// The terms of the sums of dy, and of its products with the differences from the rounded mean. Lanes past the end have
// dy = 0.
template <class T, Activation activation, class Gradient = T>
struct GradientTerms {
  using C = Opmath<T>;
  const T* x;
  const Gradient* dy;
  const Affine<C> affine;
  template <class At>
  EVENKEEL_INLINE void operator()(const At& at, Vector<C> (&out)[2]) const {
    const Vector<C> value = at.load(x);
    out[0] = through_activation<activation, C>(at.load(dy), affine(value));
    out[1] = out[0] * (value - affine.mean);
  }
};

// Runs of so many elements have few additions a lane, and their lanes are added up as they are. Not those that went
// through SiLU, and in planes through ReLU: what it leaves may be small against its terms.
constexpr int64_t few_elements = 64;

// Runs that are summed at once: to add the lanes of each by itself takes longer than a short run does.
constexpr int abreast = 8;

// Of a run of n elements what no processor foresees: where it is long, the rest follows by itself.
template <class T>
EVENKEEL_INLINE void fetch_beginning(const T* run, int64_t n) {
  constexpr int64_t line = cache_line / sizeof(T);
  for (int64_t i = 0; i < std::min(n, 4 * line); i += line) fetch(run + i);
}

// The sums of eight runs, of terms_of(run), or of `count` and of some more. in_double: from a vector's lanes on.
struct SumsAbreast {
  Doubles gradient, product;
};
template <bool in_double, class C, class Terms>
EVENKEEL_INLINE SumsAbreast sums_abreast(int64_t length, const Terms& terms_of, int count = abreast) {
  if (!in_double && length <= few_elements) {
    Vector<C> gradients[abreast], products[abreast];
#pragma GCC unroll 8
    for (int i = 0; i < abreast; ++i) {
      Vector<C> lanes[2];
      add_block<C, 1>(0, length, lanes, terms_of(i));
      gradients[i] = lanes[0];
      products[i] = lanes[1];
    }
    return {as_doubles(sums_of_lanes(gradients)), as_doubles(sums_of_lanes(products))};
  }
  Doubles gradients[abreast], products[abreast];
  for (int i = 0; i < abreast; ++i) {
    Doubles lanes[2] = {};
    if (i < count) add_terms<C>(length, lanes, terms_of(i));
    gradients[i] = lanes[0];
    products[i] = lanes[1];
  }
  return {sums_of_lanes(gradients), sums_of_lanes(products)};
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
