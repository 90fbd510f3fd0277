#include "c10d/convert.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "c10d/devices.h"

namespace ringcomm {

at::Tensor premultiply(const c10d::ReduceOp& op, const at::Tensor& input) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return input;
  const auto* supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  TORCH_CHECK_VALUE(supplement != nullptr, "ringcomm: PREMUL_SUM without its factor");
  const at::AutoDispatchBelowADInplaceOrView below;
  TORCH_CHECK_VALUE(!supplement->tensor_factor.defined() || !supplement->tensor_factor.is_complex(),
                    "ringcomm: PREMUL_SUM: the factor is ", supplement->tensor_factor.scalar_type(),
                    "; it must be a real number");
  if (supplement->tensor_factor.defined())
    return input.mul(supplement->tensor_factor.to(input.device(), input.scalar_type()));
  return input.mul(supplement->double_factor);
}

void check_tensor(const at::Tensor& tensor, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(tensor.defined(), "ringcomm: ", what, ": ", argument, " is undefined");
  if (!tensor.device().is_cpu()) check_device(tensor, what, argument);
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "ringcomm: ", what, ": ", argument, " has layout ",
                    tensor.layout(), "; only strided (dense) tensors are handled");
  check_moves(tensor, what, argument);
  if (tensor.numel() == 0 || tensor._is_zerotensor()) return;
  // untyped_storage().resize_(0) is how FSDP1 gives memory back: torch's own operations look, what works with addresses would not.
  const size_t needed = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.dtype().itemsize(),
                                                         static_cast<size_t>(tensor.storage_offset()));
  TORCH_CHECK_VALUE(tensor.storage().nbytes() >= needed, "ringcomm: ", what, ": ", argument, " has sizes ",
                    tensor.sizes(), ", which needs ", needed, " bytes, but its storage has ", tensor.storage().nbytes(),
                    ": its memory was given back");
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
  return copyable(tensor.resolve_conj().resolve_neg()).contiguous();
}

Chunk chunk_of(const at::Tensor& flat) {
  return {static_cast<char*>(flat.data_ptr()), static_cast<size_t>(flat.numel())};
}

at::Tensor Outputs::flat(const at::Tensor& given, bool keep_values, const char* what) {
  if (is_flat(given)) return given;
  TORCH_CHECK_VALUE(at::has_internal_overlap(given) != at::MemOverlap::Yes, "ringcomm: ", what, ": an output of sizes ",
                    given.sizes(), " and strides ", given.strides(),
                    " has elements that share memory (an expanded tensor); what a call writes must be memory of its "
                    "own: clone() it first");
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor tensor = copyable(given);
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
