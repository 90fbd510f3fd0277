// One c10d call on its way to the engine, and the small steps every operation takes to fill it in.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "c10d/convert.h"
#include "c10d/widen.h"
#include "engine/communicator.h"

namespace ringcomm {

// One c10d call on its way: calls for the engine, and what must outlive or follow them.
struct Launch {
  c10d::OpType type;
  const char* title;                        // "ringcomm:all_reduce", as torch's profiler expects
  std::vector<at::Tensor> inputs, outputs;  // as the caller gave them: for the profiler, for result()
  std::chrono::milliseconds timeout;
  bool async = true;
  std::vector<Call> calls;
  std::vector<int64_t> in_splits, out_splits;  // as the caller gave them: for the profiler
  std::vector<at::Tensor> keep;                // memory the engine reads or writes
  Outputs staged;
  Widened widened;
  std::function<void()> finish;  // after success, on whatever thread first learns of it
};

// Where the launch's memory is; the CPU where it has none. Throws where that is two places.
c10::Device device_of(const Launch& launch);

// The one tensor of a list that must have one. `what`, `argument`: for the message.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what, const char* argument);

uint64_t bytes_of(const std::vector<Chunk>& chunks, size_t element);

// Lists whose parts differ in size are another call: ranks may not agree on each part though they do on the sum, so every pair checks its own.
bool equal_sizes(const std::vector<Chunk>& chunks);

Call make_call(Collective collective, const at::Tensor& like, ReduceOp op = ReduceOp::none, int64_t root = -1);

// Equal parts of one flat tensor.
std::vector<Chunk> parts(const at::Tensor& flat, int n);

// Complex sums are sums of their real and imaginary parts. Takes flat tensors only: those are never lazily conjugated.
at::Tensor real_view(const at::Tensor& flat, const c10d::ReduceOp& op);

}  // namespace ringcomm
