// The activations that the channel kernels fuse, on vectors: relu and silu, and what they do to a gradient.
#pragma once

#include <bit>
#include <type_traits>

#include "channels/kernels.h"
#include "core/pairs.h"

namespace evenkeel::EVENKEEL_ISA {

// The smaller or the larger of two; b where one of them is NaN. One instruction, for which g++ takes a comparison and a
// choice.
template <bool is_smaller, class V>
EVENKEEL_INLINE V extreme(const V& a, const V& b) {
  using E = ElementOf<V>;
  if constexpr (is_joined<V>) {
    return {extreme<is_smaller>(a.low, b.low), extreme<is_smaller>(a.high, b.high)};
#if defined(__AVX512F__)
  } else if constexpr (std::is_same_v<E, float>) {
    const __m512 first = bits_as<__m512>(a), second = bits_as<__m512>(b);
    return bits_as<V>(is_smaller ? _mm512_maskz_min_ps(0xffff, first, second) : _mm512_maskz_max_ps(0xffff, first, second));
  } else {
    const __m512d first = bits_as<__m512d>(a), second = bits_as<__m512d>(b);
    return bits_as<V>(is_smaller ? _mm512_maskz_min_pd(0xff, first, second) : _mm512_maskz_max_pd(0xff, first, second));
#elif defined(__AVX2__)
  } else if constexpr (std::is_same_v<E, float>) {
    const __m256 first = bits_as<__m256>(a), second = bits_as<__m256>(b);
    return bits_as<V>(is_smaller ? _mm256_min_ps(first, second) : _mm256_max_ps(first, second));
  } else {
    const __m256d first = bits_as<__m256d>(a), second = bits_as<__m256d>(b);
    return bits_as<V>(is_smaller ? _mm256_min_pd(first, second) : _mm256_max_pd(first, second));
#else
  } else {
    return is_smaller ? choose(a < b, a, b) : choose(b < a, a, b);
#endif
  }
}

// v, or the bound where v is beyond it; NaN stays.
template <class C>
EVENKEEL_INLINE Vector<C> at_most(C bound, const Vector<C>& v) {
  return extreme<true>(Vector<C>{} + bound, v);
}
template <class C>
EVENKEEL_INLINE Vector<C> at_least(C bound, const Vector<C>& v) {
  return extreme<false>(Vector<C>{} + bound, v);
}

// exp(-t) = 2^n exp(-r) with |r| <= ln(2)/2 and a polynomial for exp(-r); ln(2) in two parts, the first so short that n
// times it is exact. For t from lowest, where it gives infinity, to highest.
template <class C>
struct Exponential;
template <>
struct Exponential<float> {
  static constexpr float lowest = -89.0f, highest = 87.0f, ln2 = 0.693359375f, ln2_rest = -2.12194440e-4f;
  static constexpr int mantissa = 23;
  static constexpr float round = 0x1.8p23f + 127;  // what it is added to ends in the bits of the power of two
  // of least relative error, 0.8 ulps; one term more makes no gradient more accurate
  static constexpr int terms = 5;
  static constexpr float coefficients[] = {1.0f, -0.9999997019767761f, 0.4999914765357971f, -0.1666763871908188f,
                                           0.04189816117286682f, -0.008290272206068039f};
};
template <>
struct Exponential<double> {
  static constexpr double lowest = -710.0, highest = 708.0, ln2 = 6.93147180369123816490e-01,
                          ln2_rest = 1.90821492927058770002e-10;
  static constexpr int mantissa = 52;
  static constexpr double round = 0x1.8p52 + 1023;
  static constexpr int terms = 11;  // of least relative error, 2^-55
  static constexpr double coefficients[] = {1.0,
                                            -1.0,
                                            0x1.0000000000010p-1,
                                            -0x1.55555555554a2p-3,
                                            0x1.555555554f35cp-5,
                                            -0x1.1111111130e3dp-7,
                                            0x1.6c16c1878540bp-10,
                                            -0x1.a01a011041731p-13,
                                            0x1.a01992c5b61bdp-16,
                                            -0x1.71df453b3c838p-19,
                                            0x1.28b31c487fb8cp-22,
                                            -0x1.ad6610b08a06bp-26};
};

// The terms of a polynomial from one on, `count` of them: halves of halves, so that few wait for each other. powers: of
// the variable, 1, 2, 4, ...
template <class E, int first, int count, class V>
EVENKEEL_INLINE V sum_of_terms(const V* powers) {
  if constexpr (count == 1) {
    return V{} + E::coefficients[first];
  } else {
    constexpr int level = std::bit_width(unsigned{count - 1}) - 1, half = 1 << level;
    return fused(sum_of_terms<E, first + half, count - half>(powers), powers[level],
                 sum_of_terms<E, first, half>(powers));
  }
}

template <class C>
EVENKEEL_INLINE Vector<C> power_of_minus(Vector<C> t) {
  using E = Exponential<C>;
  using V = Vector<C>;
  using Mask = LaneMask<C>;
  const V shifted = fused(t, V{} + C(-1.4426950408889634), V{} + E::round);
  const V n = shifted - E::round;
  const V r = fused(n, V{} + E::ln2_rest, fused(n, V{} + E::ln2, t));
  V series = V{} + E::coefficients[E::terms];
  if constexpr (sizeof(C) == sizeof(double)) {
    const V square = r * r, fourth = square * square, powers[] = {r, square, fourth, fourth * fourth};
    series = sum_of_terms<E, 0, E::terms + 1>(powers);
  } else {  // one after the other: so few that another multiplication would take longer
    for (int k = E::terms - 1; k >= 0; --k) series = fused(series, r, V{} + E::coefficients[k]);
  }
  return series * bits_as<V>(bits_as<Mask>(shifted) << E::mantissa);
}

// Both inlined: a vector of two registers would go to a function by way of memory.
template <Activation activation, class C>
EVENKEEL_INLINE Vector<C> activate(Vector<C> v) {
  if constexpr (activation == Activation::relu) return keep_lanes<C>(v, ~(v < Vector<C>{}));
  if constexpr (activation == Activation::silu) {
    using E = Exponential<C>;
    return v / (C(1) + power_of_minus<C>(at_least<C>(E::lowest, at_most<C>(E::highest, v))));
  }
  return v;
}

template <Activation activation, class C>
EVENKEEL_INLINE Pair activate(const Pair& v) {
  return {activate<activation, C>(v.even), activate<activation, C>(v.odd)};
}

// upstream times the activation's slope at v.
template <Activation activation, class C>
EVENKEEL_INLINE Vector<C> through_activation(Vector<C> upstream, Vector<C> v) {
  if constexpr (activation == Activation::relu) {
    return keep_lanes<C>(upstream, ~(v <= Vector<C>{}));
  }
  if constexpr (activation == Activation::silu) {
    // within these bounds no power is infinite; beyond them the slope is 0 and 1
    constexpr C bound = Exponential<C>::highest;
    const LaneMask<C> vanishes = v < -bound;
    v = at_least<C>(-bound, at_most<C>(bound, v));
    const auto power = power_of_minus<C>(v), sigmoid = C(1) / (C(1) + power);
    const auto slope = fused(v * sigmoid, power * sigmoid, sigmoid);
    return upstream * keep_lanes<C>(slope, ~vanishes);
  }
  return upstream;
}

// SiLU's slope s + v s (1 - s), s = 1 / (1 + exp(-v)), of v in double, to some float ulps of itself where v is above -87.
// Near the slope's zero, where the terms cancel, it is the distance from there times a polynomial of relative error 2^-27;
// above that s (1 + v (1 - s)), below it s ((1 + v) - v s), whose terms hardly cancel.
EVENKEEL_INLINE Floats precise_slope_of_silu(const Doubles (&v)[2]) {
  constexpr double zero = -0x1.474973c84120bp+0;
  constexpr float zero_high = static_cast<float>(zero), zero_low = static_cast<float>(zero - zero_high);
  constexpr float near = 0.5f, bound = Exponential<float>::highest;
  constexpr float coefficients[] = {0.2178117036819458f,    0.14664879441261292f, 0.018874648958444595f,
                                    -0.015222769230604172f, -0.0066033024340868f, 0.00012888519268017262f,
                                    0.000777613720856607f,  0.00017120254051405936f};
  const Floats rounded = as_floats(v), bounded = at_least<float>(-bound, at_most<float>(bound, rounded));
  Doubles whole[2];
  widen(rounded, whole);
  const Doubles rests[] = {v[0] - whole[0], v[1] - whole[1]};
  const Floats rest = keep_lanes<float>(as_floats(rests), (rounded >= -bound) & (rounded <= bound));
  const Floats distance = (bounded - zero_high) + (rest - zero_low), above = (bounded + 1.0f) + rest;
  Floats series = Floats{} + coefficients[7];
  for (int k = 6; k >= 0; --k) series = fused(series, distance, Floats{} + coefficients[k]);
  Floats power = power_of_minus<float>(bounded);
  power = fused(power, -rest, power);
  const Floats sigmoid = 1.0f / (1.0f + power);
  const LaneMask<float> is_below = distance < 0.0f, is_near = (distance < near) & (distance > -near);
  const Floats factor = choose(is_below, -sigmoid, power * sigmoid);
  const Floats slope = sigmoid * fused(bounded, factor, choose(is_below, above, Floats{} + 1.0f));
  return choose(is_near, distance * series, keep_lanes<float>(slope, ~(rounded < -bound)));
}

// Calls body with an activation known at compile time.
template <class Body>
inline auto with_activation(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::relu: return body(std::integral_constant<Activation, Activation::relu>{});
    case Activation::silu: return body(std::integral_constant<Activation, Activation::silu>{});
    default: return body(std::integral_constant<Activation, Activation::none>{});
  }
}

template <class C>
inline Vector<C> activate(Vector<C> v, Activation activation) {
  return with_activation(activation, [&](auto known) { return activate<decltype(known)::value, C>(v); });
}
template <class C>
inline Vector<C> through_activation(Vector<C> upstream, Vector<C> v, Activation activation) {
  return with_activation(
      activation, [&](auto known) { return through_activation<decltype(known)::value, C>(upstream, v); });
}

}  // namespace evenkeel::EVENKEEL_ISA
