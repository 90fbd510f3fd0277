// Element types: how torch's are called in the core, which of them move, and which reduce op takes which. The refusals
// and the table of docs/dtypes.md both ask here.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "core/types.h"

namespace ringcomm {

DType dtype_of(at::ScalarType type);          // DType::other for types without a name in the core
std::string dtype_name(at::ScalarType type);  // "torch.float32", as users write it

// False where elements share a byte (torch.quint4x2): the count of elements then does not say how many bytes there are.
bool moves(at::ScalarType type);
// The names of torch's reduce ops that take this type ("sum", ..., "premul_sum"), in a fixed order.
std::vector<std::string> reduce_ops(at::ScalarType type);

// Throws a ValueError that names operation, argument and type.
void check_moves(const at::Tensor& tensor, const char* what, const char* argument);

// The core's operator, after checking that it makes sense for the type of `tensor`, which is the caller's, not a flat
// stand-in for it. `what`: the operation's name, for the message. Complex sums are those of the parts; PREMUL_SUM
// gives sum: the factor is the caller's to apply (see premultiply).
ReduceOp reduce_op_of(const c10d::ReduceOp& op, const at::Tensor& tensor, const char* what);

// The same memory as a tensor of a type that torch can copy between any strides: integers of the element's size for
// quantized tensors and for types without a copy of their own, else the tensor itself. Keeps the memory alive.
at::Tensor copyable(const at::Tensor& tensor);

}  // namespace ringcomm
