// Lets torch hand quantized CPU tensors to a backend: c10d's operators are registered in torch for plain CPU tensors only,
// and dist.broadcast(quantized) would end in the dispatcher, whatever the backend. What moves is the storage, element by element;
// scale and zero point are each tensor's own and stay as they are. Backends that do not know these types refuse them
// themselves.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace {

constexpr const char* kOperators[] = {"broadcast_", "allgather_", "_allgather_base_", "allgather_coalesced_",
                                      "allgather_into_tensor_coalesced_", "gather_", "scatter_", "alltoall_",
                                      "alltoall_base_", "send", "recv_", "recv_any_source_",
                                      // Refused by the backend, in words that name the operator and the type:
                                      "allreduce_", "allreduce_coalesced_", "reduce_", "reduce_scatter_",
                                      "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"};

void as_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// A torch that has an operator's kernel for these tensors itself, or has not the operator, is left alone.
bool wanted(const char* name) {
  const auto op = c10::Dispatcher::singleton().findSchema({std::string("c10d::") + name, ""});
  return op && !op->hasKernelForDispatchKey(c10::DispatchKey::QuantizedCPU);
}

TORCH_LIBRARY_IMPL(c10d, QuantizedCPU, m) {
  for (const char* name : kOperators)
    if (wanted(name)) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&as_on_cpu>());
}

}  // namespace
