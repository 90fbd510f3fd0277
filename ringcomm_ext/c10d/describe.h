// What a call tells about itself to those who watch: torch's profiler (a range with sizes, type, group and splits) and the flight record.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <utility>
#include <vector>

#include "c10d/launch.h"

namespace ringcomm {

// False in the usual case: then nothing of what the profiler wants is put together.
inline bool profiler_listens() { return at::hasCallbacks(); }

// The tensors' sizes, several of equal sizes as one with a leading dimension.
FlightShape shape_of(at::ArrayRef<at::Tensor> tensors);
// Of call `i` of `n` that one operation on these tensors is made of.
FlightShapes shapes_of(const Call& call, size_t i, size_t n, const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& outputs);

// A group as the profiler shows it: ranks in the job as start and stride; -1 where they are not evenly spaced.
struct ProfiledGroup {
  std::string name, description;
  int size = 1, start = -1, stride = -1;
};
ProfiledGroup profiled_group(const GroupSpec& spec, std::string description);

struct ProfiledCall {
  const char* name;  // as the tools that read traces know it from other backends: "allreduce", "_allgather_base"
  int64_t sequence = 0;
  bool message = false;
  int rank = 0;  // the root where there is one, the other end of a message, else this rank
  bool async = true;
  std::vector<int64_t> in_splits, out_splits;
};
const char* profiled_name(const Launch& l);

inline int64_t elements(at::ArrayRef<at::Tensor> tensors) {
  int64_t n = 0;
  for (const at::Tensor& t : tensors) n += t.numel();
  return n;
}

// Runs `issue` inside torch's record_param_comms range.
template <typename Issue>
auto in_profiler_range(const ProfiledGroup& group, const ProfiledCall& call, const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& outputs, Issue&& issue) {
  const auto& any = inputs.empty() ? outputs : inputs;
  RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(
      std::make_tuple(call.sequence, call.message), std::make_tuple(group.name, group.description), inputs, outputs,
      call.rank, call.name, elements(inputs), elements(outputs), any.empty() ? at::kByte : any[0].scalar_type(),
      call.in_splits, call.out_splits, group.start, group.stride, group.size, call.async);
  return std::forward<Issue>(issue)();
}

}  // namespace ringcomm
