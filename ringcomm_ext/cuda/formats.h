// How a cell of elements becomes lanes to compute with, and back: the scalar form of core/reduce_formats.inc, bit for bit. A format has Lane, kLanes, what is defined on it (kScales:
// PREMUL_SUM) and read, write. Rounding happens in write.
#pragma once

#include "cuda/cells.h"

namespace ringcomm::cuda {

// What a format may need to know at run time: KernelCall::variant.
using Variant = uint32_t;

template <class T>
struct IsFloat {
  static constexpr bool value = T(0.5) != T(0);
};

// Every NaN becomes the positive quiet one without payload; the processors' own differ.
RINGCOMM_DEVICE float canonical(float v) { return v == v ? v : bits_as<float>(0x7fc00000u); }
RINGCOMM_DEVICE double canonical(double v) { return v == v ? v : bits_as<double>(uint64_t{0x7ff8} << 48); }

template <class T, int kLanes>
struct Lanes {
  T v[kLanes];
};

// Four lanes at most: with 16 bytes of 1-byte elements a kernel's accumulators left the registers, and one of them took ptxas a minute.
template <class T>
inline constexpr int kLanesOf = sizeof(T) < 8 ? 4 : 2;

// U is unsigned, float or double. Operations on signed integers choose by themselves (operations.h).
template <class U>
struct PlainFormat {
  using Lane = U;
  static constexpr int kLanes = kLanesOf<U>;
  using Cells = Cell<kLanes * sizeof(U)>;
  static constexpr bool kScales = IsFloat<U>::value, kArithmetic = true, kBitwise = !IsFloat<U>::value;
  static RINGCOMM_DEVICE void read(const Cells& cell, U (&lane)[kLanes], Variant) {
    const Lanes<U, kLanes> all = bits_as<Lanes<U, kLanes>>(cell);
    RINGCOMM_UNROLL
    for (int i = 0; i < kLanes; ++i) lane[i] = all.v[i];
  }
  static RINGCOMM_DEVICE Cells write(const U (&lane)[kLanes], Variant) {
    Lanes<U, kLanes> all;
    RINGCOMM_UNROLL
    for (int i = 0; i < kLanes; ++i) {
      if constexpr (IsFloat<U>::value)
        all.v[i] = canonical(lane[i]);
      else
        all.v[i] = lane[i];
    }
    return bits_as<Cells>(all);
  }
};

// Its sum, product, min and max are bitwise operations on 0 and 1: kernels.h names them so.
struct BooleanFormat : PlainFormat<uint8_t> {
  static constexpr bool kArithmetic = false;
  static RINGCOMM_DEVICE void read(const Cells& cell, uint8_t (&lane)[kLanes], Variant variant) {
    PlainFormat<uint8_t>::read(cell, lane, variant);
    RINGCOMM_UNROLL
    for (int i = 0; i < kLanes; ++i) lane[i] = lane[i] != 0;
  }
};

// Formats narrower than float: Codec has widen(bits, variant) and narrow(float, variant).
template <class Bits, class Codec>
struct NarrowFormat {
  using Lane = float;
  static constexpr int kLanes = kLanesOf<Bits>;
  using Cells = Cell<kLanes * sizeof(Bits)>;
  static constexpr bool kScales = true, kArithmetic = true, kBitwise = false;
  static RINGCOMM_DEVICE void read(const Cells& cell, float (&lane)[kLanes], Variant variant) {
    const Lanes<Bits, kLanes> all = bits_as<Lanes<Bits, kLanes>>(cell);
    RINGCOMM_UNROLL
    for (int i = 0; i < kLanes; ++i) lane[i] = Codec::widen(all.v[i], variant);
  }
  static RINGCOMM_DEVICE Cells write(const float (&lane)[kLanes], Variant variant) {
    Lanes<Bits, kLanes> all;
    RINGCOMM_UNROLL
    for (int i = 0; i < kLanes; ++i) all.v[i] = static_cast<Bits>(Codec::narrow(lane[i], variant));
    return bits_as<Cells>(all);
  }
};

struct BFloat16Codec {
  static RINGCOMM_DEVICE float widen(uint16_t h, Variant) { return bits_as<float>(static_cast<uint32_t>(h) << 16); }
  static RINGCOMM_DEVICE uint32_t narrow(float f, Variant) {
    const uint32_t u = bits_as<uint32_t>(canonical(f));
    return (u + ((u >> 16) & 1u) + 0x7fffu) >> 16;
  }
};

// float16 has exponent bias 15, float32 127; 13 more bits of mantissa.
struct Float16Codec {
  static constexpr uint32_t kBias = (127 - 15) << 23;
  static RINGCOMM_DEVICE float widen(uint16_t h, Variant) {
    const uint32_t m = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    const uint32_t tiny = bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(m)) * 0x1p-24f);  // exact
    const uint32_t finite = m < 0x400u ? tiny : (m << 13) + kBias;
    return bits_as<float>((m >= 0x7c00u ? (m << 13) | 0x7f800000u : finite) | sign);
  }
  static RINGCOMM_DEVICE uint32_t narrow(float f, Variant) {
    const uint32_t u = bits_as<uint32_t>(canonical(f)), m = u & 0x7fffffffu;
    const uint32_t normal = (m + ((m >> 13) & 1u) + 0xfffu - kBias) >> 13;
    // Below 2^-14 the result is a multiple of 2^-24, the distance of floats at 0.5: the addition rounds to it.
    const uint32_t tiny = bits_as<uint32_t>(bits_as<float>(m) + 0.5f) - 0x3f000000u;
    const uint32_t special = m > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t finite = m < (113u << 23) ? tiny : normal;
    return (m >= 0x477ff000u ? special : finite) | ((u >> 16) & 0x8000u);  // 65520, half way from 65504 to 2^16
  }
};

// The four 8-bit floats that have a sign. The host only moves them; sums are ours to define: widened, combined in float32, rounded once per step to nearest even, as torch
// converts: e4m3fn and the fnuz types overflow to NaN, e5m2 to infinity. Runtime, not templates: one kernel for four types, and calls, which keep it small.
enum class Float8 : Variant { e4m3fn = 0, e5m2 = 1, e4m3fnuz = 2, e5m2fnuz = 3 };

struct Float8Codec {
  static RINGCOMM_DEVICE uint32_t mantissa(Variant v) { return v & 1u ? 2 : 3; }
  static RINGCOMM_DEVICE uint32_t bias(Variant v) { return (v & 1u ? 15u : 7u) + (v >> 1); }
  static RINGCOMM_DEVICE bool one_zero(Variant v) { return v >= 2; }  // fnuz: no -0, whose bits are NaN
  static RINGCOMM_DEVICE uint32_t largest(Variant v) {
    return v == static_cast<Variant>(Float8::e4m3fn) ? 0x7e : v == static_cast<Variant>(Float8::e5m2) ? 0x7b : 0x7f;
  }

  static RINGCOMM_DEVICE_CALL float widen(uint8_t b, Variant v) {
    const uint32_t m = mantissa(v), magnitude = b & 0x7fu, sign = static_cast<uint32_t>(b & 0x80u) << 24;
    if (one_zero(v) ? b == 0x80 : magnitude > largest(v)) {
      const bool infinite = v == static_cast<Variant>(Float8::e5m2) && magnitude == 0x7c;
      return bits_as<float>(infinite ? 0x7f800000u | sign : 0x7fc00000u);
    }
    const float unit = bits_as<float>((127 + 1 - bias(v) - m) << 23);
    const uint32_t tiny = bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * unit);  // exact
    const uint32_t normal = (magnitude << (23 - m)) + ((127 - bias(v)) << 23);
    return bits_as<float>((magnitude >> m == 0 ? tiny : normal) | sign);
  }

  static RINGCOMM_DEVICE_CALL uint32_t narrow(float f, Variant v) {
    const uint32_t m = mantissa(v), u = bits_as<uint32_t>(f), a = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
    const uint32_t nan = one_zero(v) ? 0x80 : 0x7f;
    if (a > 0x7f800000u) return nan;
    // Below the smallest normal number the result is a multiple of the unit, which is the distance of floats at `anchor`.
    const uint32_t anchor = (127 + 1 - bias(v) - m + 23) << 23;
    const uint32_t tiny = bits_as<uint32_t>(bits_as<float>(a) + bits_as<float>(anchor)) - anchor;
    const uint32_t moved = a - ((127 - bias(v)) << 23);
    const uint32_t normal = (moved + ((moved >> (23 - m)) & 1u) + (1u << (22 - m)) - 1) >> (23 - m);
    const uint32_t magnitude = a < (127 + 1 - bias(v)) << 23 ? tiny : normal;
    if (magnitude > largest(v)) return v == static_cast<Variant>(Float8::e5m2) ? 0x7cu | sign : nan;
    return magnitude == 0 && one_zero(v) ? 0 : magnitude | sign;
  }
};

// For programs that only move: no operation is defined, so none is compiled.
struct BytesFormat : PlainFormat<uint32_t> {
  static constexpr bool kArithmetic = false, kBitwise = false;
};

using Float16Format = NarrowFormat<uint16_t, Float16Codec>;
using BFloat16Format = NarrowFormat<uint16_t, BFloat16Codec>;
using Float8Format = NarrowFormat<uint8_t, Float8Codec>;

}  // namespace ringcomm::cuda
