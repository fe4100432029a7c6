// The activations that the channel kernels fuse, on vectors: relu and silu, and what they do to a gradient.
#pragma once

#include "channels_kernels.h"
#include "simd.h"

namespace evenkeel {
namespace EVENKEEL_ISA {

template <class C>
inline typename Lanes<C>::vector keep_lanes(typename Lanes<C>::vector v, typename Lanes<C>::mask lanes) {
  using Mask = typename Lanes<C>::mask;
  return bits_as<typename Lanes<C>::vector>(bits_as<Mask>(v) & lanes);
}

template <class C>
inline typename Lanes<C>::vector choose_lanes(typename Lanes<C>::mask lanes, typename Lanes<C>::vector yes,
                                              typename Lanes<C>::vector no) {
  using Mask = typename Lanes<C>::mask;
  return bits_as<typename Lanes<C>::vector>((bits_as<Mask>(yes) & lanes) | (bits_as<Mask>(no) & ~lanes));
}

// exp(t) = 2^n exp(r) with |r| <= ln(2)/2 and a Taylor series for exp(r); ln(2) in two parts, the first so short that n
// times it is exact. Beyond highest it gives infinity, below lowest the smallest normal number.
template <class C>
struct Exponential;
template <>
struct Exponential<float> {
  static constexpr float lowest = -87.0f, highest = 89.0f, round = 0x1.8p23f, ln2 = 0.693359375f,
                         ln2_rest = -2.12194440e-4f;
  static constexpr int terms = 7, mantissa = 23, bias = 127;
};
template <>
struct Exponential<double> {
  static constexpr double lowest = -708.0, highest = 710.0, round = 0x1.8p52, ln2 = 6.93147180369123816490e-01,
                          ln2_rest = 1.90821492927058770002e-10;
  static constexpr int terms = 13, mantissa = 52, bias = 1023;
};

template <class C>
inline typename Lanes<C>::vector exponential(typename Lanes<C>::vector t) {
  using E = Exponential<C>;
  using V = typename Lanes<C>::vector;
  using Mask = typename Lanes<C>::mask;
  t = choose_lanes<C>(t > E::highest, V{} + E::highest, t);  // NaN passes
  t = choose_lanes<C>(t < E::lowest, V{} + E::lowest, t);
  const V shifted = t * C(1.4426950408889634) + E::round;  // its last bits are the rounded quotient
  const V n = shifted - E::round;
  const V r = (t - n * E::ln2) - n * E::ln2_rest;
  V series = V{} + C(1);
  for (int k = E::terms; k > 0; --k) series = C(1) + series * r * (C(1) / C(k));
  const Mask power = (bits_as<Mask>(shifted) - bits_as<Mask>(V{} + E::round) + E::bias) << E::mantissa;
  return series * bits_as<V>(power);
}

template <class C>
inline typename Lanes<C>::vector activate(typename Lanes<C>::vector v, Activation activation) {
  if (activation == Activation::relu) return keep_lanes<C>(v, ~(v < C(0)));
  if (activation == Activation::silu) return v / (C(1) + exponential<C>(-v));
  return v;
}

// upstream times the activation's slope at v.
template <class C>
inline typename Lanes<C>::vector through_activation(typename Lanes<C>::vector upstream, typename Lanes<C>::vector v,
                                                    Activation activation) {
  if (activation == Activation::relu) return keep_lanes<C>(upstream, ~(v <= C(0)));
  if (activation == Activation::silu) {
    const auto power = exponential<C>(-v), sigmoid = C(1) / (C(1) + power);
    const auto complement = choose_lanes<C>(v < C(0), C(1) - sigmoid, power * sigmoid);  // neither cancels
    return upstream * (sigmoid * (C(1) + v * complement));
  }
  return upstream;
}

}  // namespace EVENKEEL_ISA
}  // namespace evenkeel
