// A slow, scalar definition of the reductions for reduce_test, written without sharing anything with the kernels:
// integers in 64-bit arithmetic, 16-bit floats through double by value (decode, round to a multiple of the quantum).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/types.h"

namespace model {

using ringcomm::DType;
using ringcomm::ReduceOp;

// A 16-bit float: `precision` significant bits with the hidden one, smallest subnormal 2^lowest, exponent field of
// 16 - precision bits.
struct Half {
  int precision, lowest;
};
inline constexpr Half kFloat16{11, -24}, kBFloat16{8, -133};

inline double decode(Half h, uint16_t bits) {
  const int stored = h.precision - 1;
  const int field = (bits & 0x7fff) >> stored, all_ones = (1 << (15 - stored)) - 1;
  const int fraction = bits & ((1 << stored) - 1);
  double value;
  if (field == all_ones) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else {
    value = field == 0 ? std::ldexp(fraction, h.lowest) : std::ldexp(fraction + (1 << stored), h.lowest + field - 1);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

inline uint16_t encode(Half h, double value) {
  const int stored = h.precision - 1;
  const int infinity = ((1 << (15 - stored)) - 1) << stored;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | (1 << (stored - 1)));
  const int sign = std::signbit(value) ? 0x8000 : 0;
  if (value == 0) return static_cast<uint16_t>(sign);
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  int exponent;
  std::frexp(value, &exponent);
  const int quantum = std::max(exponent - h.precision, h.lowest);
  // Multiples of the quantum, to nearest even. Counting on from the smallest subnormal, every step of the encoding is
  // one more such multiple, so the carry into the exponent, even into infinity, is plain addition.
  const int multiple = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), -quantum)));
  const int magnitude = ((quantum - h.lowest) << stored) + multiple;
  return static_cast<uint16_t>(sign | std::min(magnitude, infinity));
}

// Keeps a float result from being computed in anything wider, or fused with the next operation.
template <class T>
T settle(T value) {
  volatile T v = value;
  return v;
}

template <class T>
T fold_float(ReduceOp op, const std::vector<T>& x, int divisor) {
  T acc = x[0];
  for (size_t i = 1; i < x.size(); ++i) {
    if (op == ReduceOp::sum || op == ReduceOp::avg) acc = settle(acc + x[i]);
    if (op == ReduceOp::product) acc = settle(acc * x[i]);
    if (op == ReduceOp::min || op == ReduceOp::max) {
      if (std::isnan(acc) || std::isnan(x[i])) {
        acc = std::numeric_limits<T>::quiet_NaN();
      } else if (op == ReduceOp::min ? x[i] < acc : x[i] > acc) {
        acc = x[i];
      }
    }
  }
  if (op == ReduceOp::avg) acc = settle(acc / static_cast<T>(divisor));
  return std::isnan(acc) ? std::numeric_limits<T>::quiet_NaN() : acc;
}

template <class T>
T fold_integer(ReduceOp op, const std::vector<T>& x, int divisor) {
  uint64_t bits = static_cast<uint64_t>(x[0]);  // modulo 2^64: truncation to T's bits commutes with all but avg
  T low = x[0], high = x[0];
  for (size_t i = 1; i < x.size(); ++i) {
    const uint64_t next = static_cast<uint64_t>(x[i]);
    if (op == ReduceOp::sum || op == ReduceOp::avg) bits += next;
    if (op == ReduceOp::product) bits *= next;
    if (op == ReduceOp::band) bits &= next;
    if (op == ReduceOp::bor) bits |= next;
    if (op == ReduceOp::bxor) bits ^= next;
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  if (op == ReduceOp::min) return low;
  if (op == ReduceOp::max) return high;
  const T wrapped = static_cast<T>(bits);
  if (op != ReduceOp::avg) return wrapped;
  if constexpr (std::is_signed_v<T>) return static_cast<T>(static_cast<int64_t>(wrapped) / divisor);
  return static_cast<T>(static_cast<uint64_t>(wrapped) / static_cast<uint64_t>(divisor));
}

inline uint8_t fold_bool(ReduceOp op, const std::vector<uint8_t>& x) {
  size_t truths = 0;
  for (uint8_t v : x) truths += v != 0 ? 1 : 0;
  if (op == ReduceOp::bxor) return truths % 2 != 0;
  const bool all = op == ReduceOp::product || op == ReduceOp::min || op == ReduceOp::band;
  return all ? truths == x.size() : truths != 0;
}

inline uint16_t fold_half(Half h, ReduceOp op, const std::vector<uint16_t>& x, int divisor) {
  std::vector<float> wide;
  for (uint16_t bits : x) wide.push_back(static_cast<float>(decode(h, bits)));  // exact
  return encode(h, static_cast<double>(fold_float(op, wide, divisor)));
}

// Reads element i of every source as T, folds, writes the result to out.
template <class T, class Fold>
void element(void* out, const std::vector<const char*>& src, size_t i, Fold fold) {
  std::vector<T> x(src.size());
  for (size_t s = 0; s < src.size(); ++s) std::memcpy(&x[s], src[s] + i * sizeof(T), sizeof(T));
  const T result = fold(x);
  std::memcpy(static_cast<char*>(out) + i * sizeof(T), &result, sizeof(T));
}

template <class T>
void numbers(void* out, const std::vector<const char*>& src, size_t count, ReduceOp op, int divisor) {
  for (size_t i = 0; i < count; ++i) {
    element<T>(out, src, i, [&](const std::vector<T>& x) {
      if constexpr (std::is_floating_point_v<T>)
        return fold_float<T>(op, x, divisor);
      else
        return fold_integer<T>(op, x, divisor);
    });
  }
}

inline void halves(Half h, void* out, const std::vector<const char*>& src, size_t count, ReduceOp op, int divisor) {
  for (size_t i = 0; i < count; ++i) {
    element<uint16_t>(out, src, i, [&](const std::vector<uint16_t>& x) { return fold_half(h, op, x, divisor); });
  }
}

// out[i] = src[0][i] op src[1][i] op ..., the contract of core/reduce.h.
inline void reduce(DType dtype, ReduceOp op, void* out, const std::vector<const char*>& src, size_t count,
                   int divisor) {
  switch (dtype) {
    case DType::uint8:
      return numbers<uint8_t>(out, src, count, op, divisor);
    case DType::int8:
      return numbers<int8_t>(out, src, count, op, divisor);
    case DType::int16:
      return numbers<int16_t>(out, src, count, op, divisor);
    case DType::int32:
      return numbers<int32_t>(out, src, count, op, divisor);
    case DType::int64:
      return numbers<int64_t>(out, src, count, op, divisor);
    case DType::uint16:
      return numbers<uint16_t>(out, src, count, op, divisor);
    case DType::uint32:
      return numbers<uint32_t>(out, src, count, op, divisor);
    case DType::uint64:
      return numbers<uint64_t>(out, src, count, op, divisor);
    case DType::float16:
      return halves(kFloat16, out, src, count, op, divisor);
    case DType::bfloat16:
      return halves(kBFloat16, out, src, count, op, divisor);
    case DType::float32:
      return numbers<float>(out, src, count, op, divisor);
    case DType::float64:
      return numbers<double>(out, src, count, op, divisor);
    case DType::boolean:
      for (size_t i = 0; i < count; ++i) {
        element<uint8_t>(out, src, i, [&](const std::vector<uint8_t>& x) { return fold_bool(op, x); });
      }
      return;
    default:  // only moves
      return;
  }
}

}  // namespace model
