// Ranks whose tensors are on devices, in one of two modes: who they are, the memory they share, and calls of programs put into streams. Which mode: device_mode.h.
//
//   spin    one kernel runs the whole program and waits in it (kernel.h)           spin_group.h
//   memop   the host enqueues copies, short kernels and stream waits (enqueuer.h)  memop_group.h
//
// The same life in both: make, exchange cards, connect, load programs, enqueue; at the end every stream is done, `disconnect`, all ranks meet, destroy.
// Memory that calls use is given back, by whomever, when all ranks' streams are done: a free may wait for all that its process has enqueued. Nothing here knows torch, or how ranks meet. A group is used by one thread at a time; `look` and `end` by any.
#pragma once

#include <vector>

#include "core/program.h"
#include "cuda/device_runtime.h"
#include "cuda/kernel_call.h"
#include "cuda/kernels.h"

namespace ringcomm::cuda {

enum class DeviceMode : uint32_t { spin = 1, memop = 2 };
inline const char* name(DeviceMode mode) { return mode == DeviceMode::spin ? "spin" : "memop"; }

// What a rank tells the others before anything runs: plain data.
struct DeviceCard {
  SharedMemory segment;
  uint64_t layout;  // of the segment: ranks that differ in it would write where others do not look
  int32_t rank;
  DeviceMode mode;
};

// One collective of one rank. All but chunks' addresses is the same on all ranks, as docs/program.md asks. Counts and `piece` are in elements of the kernel: a complex number is two.
struct DeviceCall {
  int program = -1;                  // of `load`
  std::vector<DeviceChunk> in, out;  // as docs/program.md lays them out
  KernelChoice kernel;
  size_t piece = 0;
  uint32_t tag = 0;
  bool uneven = false;         // Run::sized_tags of core/interpreter.h
  bool premultiplied = false;  // every IN element counts `factor` times
  double factor = 1;
  // Of spin alone.
  bool low_latency = false;
  int blocks = 0;          // 0: all that the FIFOs were made for
  int64_t timeout_ns = 0;  // since the kernel began to run; 0: none
};

class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  virtual DeviceMode mode() const = 0;
  virtual const DeviceCard& card() const = 0;
  // Bytes of host memory, each rank's own, that all ranks' processes must have mapped (0: none): whole pages, all 0.
  virtual size_t flag_bytes() const = 0;
  // With all ranks' cards and flag pages by rank. Every card must come from a rank that has its memory already: all of it is 0 then.
  virtual bool connect(const std::vector<DeviceCard>& cards, const std::vector<char*>& flags, Error& error) = 0;

  // A packed program (docs/program.md), the same one twice is one; its number, or -1 where it cannot run here. Not in a capture: this may allocate, and so wait for what this
  // process has enqueued. That does not matter where all ranks make the same calls in the same order, each in a process of its own. Ranks that are threads of one process load before one of them has a call under way.
  virtual int load(const std::vector<int32_t>& table, Error& error) = 0;
  // Waits for nothing. Calls of a group go into one stream, or streams ordered by events, in the same order on all ranks. After an error the group is at its end.
  virtual bool enqueue(const DeviceCall& call, StreamHandle stream, Error& error) = 0;

  // True and the error, with peer and step, where a call has failed on the device. At any time.
  virtual bool look(Error& error) const = 0;
  // Gives up whatever is enqueued to the stream and waits until it is done. Results are rubbish and the group is at its end. False: it is still busy at the deadline.
  virtual bool end(StreamHandle stream, int64_t deadline_ns, Error& error) = 0;
  // Closes peers' memory. Streams must be done.
  virtual void disconnect() = 0;
};

}  // namespace ringcomm::cuda
