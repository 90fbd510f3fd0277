// Sums of 8-bit floats have no host to compare with: a model by value. It decodes each of the 256 codes by the definition of its format and encodes by looking for the
// nearest.
#pragma once

#include <cmath>
#include <limits>

#include "cuda/formats.h"
#include "kernel_once.h"
#include "reduce_inputs.h"
#include "reduce_model.h"

namespace ringcomm::test {

struct Float8Model {
  DType dtype;
  int mantissa, bias, largest;  // largest: code of the largest finite magnitude
  bool one_zero, infinity;      // whether 0x80 is the NaN; whether what lies above is infinity
  int nan;

  double decode(int code) const {
    const int magnitude = code & 0x7f, exponent = magnitude >> mantissa, fraction = magnitude & ((1 << mantissa) - 1);
    if (one_zero && code == 0x80) return std::numeric_limits<double>::quiet_NaN();
    if (magnitude > largest)
      return infinity && magnitude == largest + 1 ? (code & 0x80 ? -HUGE_VAL : HUGE_VAL)
                                                  : std::numeric_limits<double>::quiet_NaN();
    return (code & 0x80 ? -1 : 1) * finite(exponent, fraction);
  }
  double finite(int exponent, int fraction) const {
    return exponent == 0 ? std::ldexp(fraction, 1 - bias - mantissa)
                         : std::ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
  }
  // To nearest, ties to the even code; the code above the largest counts as a number for the comparison only.
  int encode(double value) const {
    if (std::isnan(value)) return nan;
    const double above = finite((largest + 1) >> mantissa, (largest + 1) & ((1 << mantissa) - 1));
    const double size = std::min(std::fabs(value), above);  // farther away all distances look alike
    int best = 0;
    double distance = size;
    for (int code = 1; code <= largest + 1; ++code) {
      const double away = std::fabs(finite(code >> mantissa, code & ((1 << mantissa) - 1)) - size);
      if (away < distance || (away == distance && code % 2 == 0)) best = code, distance = away;
    }
    const int sign = std::signbit(value) ? 0x80 : 0;
    if (best > largest || std::isinf(value)) return infinity ? (largest + 1) | sign : nan;
    return best == 0 && one_zero ? 0 : best | sign;
  }
};

inline constexpr Float8Model kFloat8s[] = {{DType::float8_e4m3fn, 3, 7, 0x7e, false, false, 0x7f},
                                           {DType::float8_e5m2, 2, 15, 0x7b, false, true, 0x7f},
                                           {DType::float8_e4m3fnuz, 3, 8, 0x7f, true, false, 0x80},
                                           {DType::float8_e5m2fnuz, 2, 16, 0x7f, true, false, 0x80}};

// Conversions one by one, exhaustively one way, then reductions.
inline void float8_sums() {
  for (const Float8Model& m : kFloat8s) {
    cuda::KernelChoice choice;
    CHECK(cuda::reducing_kernel(m.dtype, ReduceOp::sum, choice));
    for (int code = 0; code < 256; ++code) {
      const float wide = cuda::Float8Codec::widen(static_cast<uint8_t>(code), choice.variant);
      const double value = m.decode(code);
      CHECK(std::isnan(value) ? std::isnan(wide) : wide == value && std::signbit(wide) == std::signbit(value));
    }
    for (int i = 0; i < 200000; ++i) {
      uint32_t bits = static_cast<uint32_t>(inputs::generator());
      if (i % 2)
        bits = (bits & 0x807fffffu) | static_cast<uint32_t>(100 + inputs::below(50))
                                          << 23;  // where the formats' numbers are
      if (i % 8 == 1) bits &= 0xfff00000u;        // ties
      float value;
      std::memcpy(&value, &bits, sizeof value);
      CHECK_EQ(cuda::Float8Codec::narrow(value, choice.variant),
               static_cast<uint32_t>(m.encode(static_cast<double>(value))));
    }
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max})
      for (int n : {2, 5, 8}) {
        CHECK(cuda::reducing_kernel(m.dtype, op, choice));
        const size_t count = 509;
        std::vector<std::vector<char>> sources(static_cast<size_t>(n), std::vector<char>(count));
        for (auto& s : sources)
          for (char& c : s) c = static_cast<char>(inputs::generator());
        const std::vector<char> result = reduce_once(choice, sources, count, 1);
        for (size_t i = 0; i < count; ++i) {
          std::vector<float> x;
          for (auto& s : sources) x.push_back(static_cast<float>(m.decode(static_cast<unsigned char>(s[i]))));
          const int expected = m.encode(static_cast<double>(model::fold_float(op, x, n)));
          CHECK_EQ(static_cast<int>(static_cast<unsigned char>(result[i])), expected);
        }
      }
    for (ReduceOp op : {ReduceOp::band, ReduceOp::none}) CHECK(!cuda::reducing_kernel(m.dtype, op, choice));
  }
  cuda::KernelChoice choice;
  CHECK(
      !cuda::reducing_kernel(DType::float8_e8m0fnu, ReduceOp::sum, choice));  // has no sign and no zero: it only moves
}

}  // namespace ringcomm::test
