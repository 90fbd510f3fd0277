// The enqueuing interpreter, `memop` mode: runs a program over a message as core/interpreter.h does, but by enqueuing: the host walks through all steps and loops at once and
// puts copies, short kernels and flags into a stream. Nothing spins on the device, so several ranks may share one, and the host never waits.
//
// What a message costs. Each slot has two flags. `full`, at the reader: 1 from when the writer has filled the slot until the reader has seen it. `room`, at the
// writer: -1 from when the writer takes the slot until the reader has read it, else 0.
//
//   writer   wait room >= 0, room = -1, copy into the slot, full = 1
//   reader   wait full >= 1, full = 0,  copy out of it,     room = 0
//
// Both ends of a flag write it, but never at the same time: what either waits for is what the other wrote last. So flags are as they were when a call is over, a call
// uses slots from 0 on, and there is no counter. That is why a captured call can be replayed any number of times, between calls that are not captured.
//
// What it does not see. A slot carries no tag: that ranks make different calls, or different sizes of an uneven one, must be found by the control plane.
//
// Calls of a group are enqueued one after the other, into one stream, or streams ordered by events. Any thread, one at a time.
#pragma once

#include <string>
#include <vector>

#include "core/program.h"
#include "cuda/combine_call.h"
#include "cuda/device_runtime.h"
#include "cuda/enqueuer_layout.h"
#include "cuda/kernel_call.h"

namespace ringcomm::cuda {

using EnqueuedChunk = DeviceChunk;

struct EnqueuedCall {
  const Program* program = nullptr;
  std::vector<EnqueuedChunk> in, out;  // as docs/program.md lays them out
  size_t element = 1;                  // bytes
  size_t piece = 0;                    // elements
  // Of a collective that reduces: the kernel, as combine_call.h says.
  std::string kernel;
  ReduceOp op = ReduceOp::none;
  uint32_t variant = 0;
  bool premultiplied = false;  // every IN element counts `factor` times
  double factor = 1;
  bool uneven = false;  // an empty chunk moves one empty slot, as in core/interpreter.h with sized tags
};

class Enqueuer {
 public:
  // `segments` by rank, all zeroes before any rank enqueues. The runtime must outlive it.
  Enqueuer(DeviceRuntime& runtime, const EnqueuerLayout& layout, int rank, std::vector<RankSegments> segments)
      : runtime_(runtime), layout_(layout), rank_(rank), segments_(std::move(segments)) {}

  // Why these slots cannot carry the program with pieces of so many bytes; "" where they can.
  static std::string refusal(const EnqueuerLayout& layout, const Program& program, size_t piece_bytes);

  // Enqueues the call. On an error part of it is enqueued: the group is broken, the stream must be drained with end_waits.
  bool enqueue(const EnqueuedCall& call, StreamHandle stream, Error& error) const;

  // Ends whatever streams wait for on own flags, which are at `flags` for the host. What comes behind in the stream takes flags back and waits again: to be called until
  // the stream is done. The results are rubbish then.
  static void end_waits(const EnqueuerLayout& layout, char* flags);

 private:
  class Walk;
  DeviceRuntime& runtime_;
  const EnqueuerLayout layout_;
  const int rank_;
  const std::vector<RankSegments> segments_;
};

}  // namespace ringcomm::cuda
