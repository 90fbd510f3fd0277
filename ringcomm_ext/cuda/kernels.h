// Which kernel runs which dtype and operation. Host side; no CUDA header.
#pragma once

#include <string>
#include <vector>

#include "core/types.h"

namespace ringcomm::cuda {

// One kernel each: the formats that are computed in the same way. An operation is chosen at run time inside.
enum class Family { bytes, int8, int16, int32, int64, float16, bfloat16, float32, float64, boolean, float8 };
inline constexpr int kFamilies = 11;

// The interpreter's name in the module, "ringcomm_" and the family's; and the short kernel's (combine_call.h), "ringcomm_combine_" and the family's: of every family but `bytes`.
std::string kernel_name(Family family);
std::string combine_name(Family family);
// All of them: what a module must have.
std::vector<std::string> kernel_names();

struct KernelChoice {
  Family family = Family::bytes;
  uint32_t variant = 0;          // KernelCall::variant
  ReduceOp op = ReduceOp::none;  // KernelCall::op: of a bool, the bitwise one
  size_t element = 1;            // KernelCall::element
  size_t parts = 1;              // elements of the kernel per element of the tensor: 2 for complex
};

// For a collective that only moves: elements of any number of bytes.
KernelChoice moving_kernel(size_t element);

// For one that reduces; false where the pair makes no sense: as reduce_function of core/reduce.h, and besides: 8-bit floats sum, average, multiply, min and max
// (formats.h), complex numbers sum and average.
bool reducing_kernel(DType dtype, ReduceOp op, KernelChoice& out);

}  // namespace ringcomm::cuda
