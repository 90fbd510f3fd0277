// The kernels: for each family of kernels.h the format that it is compiled with. All but `bytes` reduce, and have a short kernel too (combine.h).
#pragma once

#include "cuda/combine.h"
#include "cuda/kernel.h"

// clang-format off
#define RINGCOMM_REDUCING_FAMILIES(X)  \
  X(int8, PlainFormat<uint8_t>)        \
  X(int16, PlainFormat<uint16_t>)      \
  X(int32, PlainFormat<uint32_t>)      \
  X(int64, PlainFormat<uint64_t>)      \
  X(float16, Float16Format)            \
  X(bfloat16, BFloat16Format)          \
  X(float32, PlainFormat<float>)       \
  X(float64, PlainFormat<double>)      \
  X(boolean, BooleanFormat)            \
  X(float8, Float8Format)
#define RINGCOMM_FAMILIES(X)           \
  X(bytes, BytesFormat)                \
  RINGCOMM_REDUCING_FAMILIES(X)
// clang-format on
