#include "c10d/convert.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "core/reduce.h"

namespace ringcomm {

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return DType::uint8;
    case at::kChar:
      return DType::int8;
    case at::kShort:
      return DType::int16;
    case at::kInt:
      return DType::int32;
    case at::kLong:
      return DType::int64;
    case at::kUInt16:
      return DType::uint16;
    case at::kUInt32:
      return DType::uint32;
    case at::kUInt64:
      return DType::uint64;
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kFloat:
      return DType::float32;
    case at::kDouble:
      return DType::float64;
    case at::kBool:
      return DType::boolean;
    default:
      return DType::other;
  }
}

namespace {

ReduceOp plain_op(const c10d::ReduceOp& op, const char* what) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor;
    default:
      TORCH_CHECK_VALUE(false, "ringcomm: ", what, ": unknown reduce op ", static_cast<int>(op.op_));
  }
}

}  // namespace

ReduceOp reduce_op_of(const c10d::ReduceOp& op, const at::Tensor& tensor, const char* what) {
  const ReduceOp plain = plain_op(op, what);
  const DType dtype = dtype_of(tensor.scalar_type());
  const bool premul = op.op_ == c10d::ReduceOp::PREMUL_SUM;
  TORCH_CHECK_VALUE(!premul || at::isFloatingType(tensor.scalar_type()), "ringcomm: ", what,
                    ": PREMUL_SUM is for floating point tensors, not ", tensor.scalar_type());
  TORCH_CHECK_VALUE(
      dtype != DType::other && reduce_function(dtype, plain) != nullptr, "ringcomm: ", what, ": reduce op ",
      name(plain), " is not defined for ", tensor.scalar_type(),
      " (floats: sum avg product min max; integers: those and band bor bxor; bool: sum product min max band bor bxor)");
  return plain;
}

at::Tensor premultiply(const c10d::ReduceOp& op, const at::Tensor& input) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return input;
  const auto* supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "ringcomm: PREMUL_SUM without its factor");
  const at::AutoDispatchBelowADInplaceOrView below;
  if (supplement->tensor_factor.defined())
    return input.mul(supplement->tensor_factor.to(input.device(), input.scalar_type()));
  return input.mul(supplement->double_factor);
}

void check_tensor(const at::Tensor& tensor, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(tensor.defined(), "ringcomm: ", what, ": ", argument, " is undefined");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "ringcomm: ", what, ": ", argument, " is on ", tensor.device(),
                    "; this build handles CPU tensors");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "ringcomm: ", what, ": ", argument, " has layout ",
                    tensor.layout(), "; only strided (dense) tensors are handled");
}

void check_same_type(const at::Tensor& tensor, const at::Tensor& reference, const char* what, const char* argument) {
  check_tensor(tensor, what, argument);
  TORCH_CHECK_VALUE(tensor.scalar_type() == reference.scalar_type(), "ringcomm: ", what, ": ", argument, " is ",
                    tensor.scalar_type(), " where ", reference.scalar_type(),
                    " is expected: all tensors of one call have one dtype");
}

bool is_flat(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }

at::Tensor flat_input(const at::Tensor& tensor) {
  if (is_flat(tensor)) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below;
  return tensor.resolve_conj().resolve_neg().contiguous();
}

Chunk chunk_of(const at::Tensor& flat) {
  return {static_cast<char*>(flat.data_ptr()), static_cast<size_t>(flat.numel())};
}

at::Tensor Outputs::flat(const at::Tensor& tensor, bool keep_values, const char* what) {
  if (is_flat(tensor)) return tensor;
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "ringcomm: ", what,
                    ": an output of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                    " has elements that share memory (an expanded tensor); what a call writes must be memory of its "
                    "own: clone() it first");
  const at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor stand_in = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  if (keep_values) stand_in.copy_(tensor);
  staged_.emplace_back(tensor, stand_in);
  return stand_in;
}

void Outputs::copy_back() const {
  // Below autograd: an output may be a leaf that wants gradients, or an inference tensor.
  const at::AutoDispatchBelowADInplaceOrView below;
  for (const auto& [tensor, stand_in] : staged_) tensor.copy_(stand_in);
}

}  // namespace ringcomm
