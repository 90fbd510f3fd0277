#include "c10d/describe.h"

#include <algorithm>

namespace ringcomm {
namespace {

using c10d::OpType;

int type_of(const Call& call, const std::vector<at::Tensor>& tensors, size_t i) {
  switch (call.dtype) {
    case DType::uint8:
      return static_cast<int>(at::kByte);
    case DType::int64:
      return static_cast<int>(at::kLong);
    default:
      return tensors.empty() ? -1 : static_cast<int>(tensors[std::min(i, tensors.size() - 1)].scalar_type());
  }
}

FlightShape count_of(const std::vector<Chunk>& chunks, int type) {
  int64_t n = 0;
  for (const Chunk& c : chunks) n += static_cast<int64_t>(c.count);
  return FlightShape::flat(n, type);
}

bool alike(at::ArrayRef<at::Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& t) { return t.sizes() == tensors[0].sizes(); });
}

}  // namespace

FlightShape shape_of(at::ArrayRef<at::Tensor> tensors) {
  FlightShape shape;
  if (tensors.empty()) return shape;
  const at::IntArrayRef sizes = tensors[0].sizes();
  const size_t lead = tensors.size() > 1 ? 1 : 0;
  const auto type = static_cast<int>(tensors[0].scalar_type());
  if (sizes.size() + lead > FlightShape::kDims || !alike(tensors)) return FlightShape::flat(elements(tensors), type);
  shape.type = static_cast<int8_t>(type);
  shape.dims = static_cast<int8_t>(sizes.size() + lead);
  if (lead) shape.sizes[0] = static_cast<int64_t>(tensors.size());
  std::copy(sizes.begin(), sizes.end(), shape.sizes + lead);
  return shape;
}

FlightShapes shapes_of(const Call& call, size_t i, size_t n, const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& outputs) {
  if (n == 1 && !(inputs.empty() && outputs.empty())) return {shape_of(inputs), shape_of(outputs)};
  if (n == inputs.size() && n == outputs.size()) return {shape_of(inputs[i]), shape_of(outputs[i])};
  const int type = type_of(call, inputs, i);
  return {count_of(call.in, type), count_of(call.out, type)};
}

ProfiledGroup profiled_group(const GroupSpec& spec, std::string description) {
  ProfiledGroup group{spec.name, std::move(description), spec.ranks};
  const auto rank = [&](int r) { return spec.peers[static_cast<size_t>(r)].global_rank; };
  const int stride = spec.ranks > 1 ? rank(1) - rank(0) : 1;
  for (int r = 1; r < spec.ranks; ++r)
    if (rank(r) - rank(r - 1) != stride) return group;
  group.start = rank(0);
  group.stride = stride;
  return group;
}

const char* profiled_name(const Launch& l) {
  switch (l.type) {
    case OpType::ALLREDUCE:
      return "allreduce";
    case OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case OpType::_ALLGATHER_BASE:
      return "_allgather_base";
    case OpType::_REDUCE_SCATTER_BASE:
      return "_reduce_scatter_base";
    case OpType::ALLTOALL_BASE:
      return l.in_splits.empty() && l.out_splits.empty() ? "all_to_all" : "all_to_allv";
    case OpType::COALESCED:
      return l.calls[0].collective == Collective::all_gather ? "allgather_into_tensor_coalesced"
                                                             : "reduce_scatter_tensor_coalesced";
    default:
      return name(l.calls[0].collective);
  }
}

}  // namespace ringcomm
