// Inputs for reduce_test, from a fixed seed. Floats: one third any bits (NaN, infinities, subnormals come by
// themselves), one sixth corner cases, the rest numbers whose results neither vanish nor overflow, so that rounding is
// exercised. Integers: any bits, one sixth corner cases.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "core/types.h"

namespace inputs {

using ringcomm::DType;

inline std::mt19937_64 generator(20240607);
inline size_t below(size_t n) { return static_cast<size_t>(generator() % n); }

inline bool is_float(DType t) {
  return t == DType::float16 || t == DType::bfloat16 || t == DType::float32 || t == DType::float64;
}

// Bits of a float: sign, exponent field, fraction.
inline uint64_t float_bits(DType t, bool negative, int exponent_from_bias, uint64_t fraction) {
  const int stored = t == DType::float16 ? 10 : t == DType::bfloat16 ? 7 : t == DType::float32 ? 23 : 52;
  const int width = static_cast<int>(8 * element_size(t));
  const int bias = (1 << (width - stored - 2)) - 1;
  const uint64_t field = static_cast<uint64_t>(bias + exponent_from_bias) << stored;
  return (uint64_t{negative} << (width - 1)) | field | (fraction & ((uint64_t{1} << stored) - 1));
}

inline uint64_t corner_case(DType t) {
  const int width = static_cast<int>(8 * element_size(t));
  const uint64_t ones = ~uint64_t{0}, sign = uint64_t{1} << (width - 1);
  const int bias = t == DType::float16 ? 15 : t == DType::float64 ? 1023 : 127;
  if (!is_float(t)) return std::vector<uint64_t>{0, 1, 2, ones, sign, sign - 1, sign + 1}[below(7)];
  const bool negative = below(2) != 0;
  switch (below(7)) {
    case 0:
      return float_bits(t, negative, -bias, 0);  // zero
    case 1:
      return float_bits(t, negative, -bias, 1 + below(3));  // smallest subnormals
    case 2:
      return float_bits(t, negative, -bias, ones);  // largest subnormal
    case 3:
      return float_bits(t, negative, bias, ones - below(2));  // largest finite
    case 4:
      return float_bits(t, negative, bias + 1, 0);  // infinity
    case 5:
      return float_bits(t, negative, bias + 1, 1 + generator());  // a NaN, quiet or signalling
    default:
      return float_bits(t, negative, 1 - bias, below(2));  // smallest normal
  }
}

inline uint64_t any_element(DType t) {
  const size_t kind = below(6);
  if (kind == 0) return corner_case(t);
  if (t == DType::boolean) return kind < 5 ? below(2) : generator();
  if (!is_float(t) || kind < 3) return generator();
  return float_bits(t, below(2) != 0, static_cast<int>(below(7)) - 3, generator());
}

inline void fill(DType t, char* at, size_t count) {
  const size_t size = element_size(t);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = any_element(t);
    std::memcpy(at + i * size, &bits, size);
  }
}

}  // namespace inputs
