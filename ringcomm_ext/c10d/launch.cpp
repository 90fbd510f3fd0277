#include "c10d/launch.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

namespace ringcomm {

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "ringcomm: ", what, ": ", argument, " must be one tensor, got ",
                    tensors.size());
  check_tensor(tensors[0], what, argument);
  return tensors[0];
}

c10::Device device_of(const Launch& launch) {
  if (launch.keep.empty()) return c10::kCPU;
  const c10::Device first = launch.keep[0].device();
  for (const at::Tensor& t : launch.keep)
    TORCH_CHECK_VALUE(t.device() == first, "ringcomm: a call has tensors on ", first, " and on ", t.device(),
                      "; all tensors of one call are on one device");
  return first;
}

uint64_t bytes_of(const std::vector<Chunk>& chunks, size_t element) {
  uint64_t bytes = 0;
  for (const Chunk& c : chunks) bytes += c.count * element;
  return bytes;
}

bool equal_sizes(const std::vector<Chunk>& chunks) {
  return std::all_of(chunks.begin(), chunks.end(), [&](const Chunk& c) { return c.count == chunks.front().count; });
}

Call make_call(Collective collective, const at::Tensor& like, ReduceOp op, int64_t root) {
  Call call;
  call.collective = collective;
  call.dtype = dtype_of(like.scalar_type());
  call.element = like.element_size();
  call.op = op;
  call.root = static_cast<int>(root);
  return call;
}

std::vector<Chunk> parts(const at::Tensor& flat, int n) {
  const size_t count = static_cast<size_t>(flat.numel()) / n;
  std::vector<Chunk> chunks;
  for (int i = 0; i < n; ++i)
    chunks.push_back({static_cast<char*>(flat.data_ptr()) + i * count * flat.element_size(), count});
  return chunks;
}

at::Tensor real_view(const at::Tensor& flat, const c10d::ReduceOp& op) {
  if (!flat.is_complex() || !c10d::isComplexViewAsRealAllowed(op)) return flat;
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::view_as_real(flat);
}

}  // namespace ringcomm
