// What a kernel is told, and what lies in memory that ranks share. Plain data, the same for nvcc and g++; every pointer is one of the device that runs it.
//
// A device FIFO is `slots` slots in somebody's memory, and for each block of the grid two words: the head, in the reader's memory, and the credit, in the writer's.
// Each word has one writer. Block b of the writer talks to block b of the reader and to no other: it writes its own stripe of each slot, so a FIFO is as many
// independent ones as there are blocks, and no grid-wide barrier is needed. Both ends run with the same number of blocks and the same stripes.
//
//   kind      slots lie with        because
//   pair      the reader            a store crosses the link once, a load goes there and back
//   fan-out   the writer            one copy for all readers
//   low latency, both kinds         with each reader: it polls the data itself (cells.h)
//
// Positions count messages for ever (mod 2^32), as in core/fifo.h. They are kept in device memory, not in arguments: a captured launch is replayed with the arguments
// it was captured with.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace ringcomm::cuda {

inline constexpr uint32_t kMaxSlots = 8;  // powers of two only: position % slots must not jump where positions wrap
inline constexpr int kMaxSources = 96;    // of one step
inline constexpr int kMaxTargets = 96;    // of one step: its destination and all copies that its senders make

// Head of one FIFO and block: written by the writer, read by the reader.
struct alignas(64) HeadLine {
  uint32_t position;         // messages published
  uint32_t tags[kMaxSlots];  // of the message in each slot; not used by low latency, whose tag travels in the slot
};
// Credit of one reader and block: written by the reader, read by the writer.
struct alignas(64) CreditLine {
  uint32_t position;  // messages taken
};

// The other end of a sender, one for each reader.
struct ReaderEnd {
  char* slots;                // where to write; a plain fan-out has one copy: that of the first
  HeadLine* heads;            // by block
  const CreditLine* credits;  // by block
  int32_t peer;
};

struct SenderEnd {
  int32_t first_reader, readers;  // in KernelCall::readers
  int32_t copies;                 // of each message: 1, or one for each reader
  uint32_t* positions;            // by block: the next message; only the own kernels touch it
};

struct ReceiverEnd {
  const char* slots;
  const HeadLine* heads;  // by block
  CreditLine* credits;    // by block
  uint32_t* positions;    // by block
  int32_t peer;
};

// The IN or OUT chunks of a call. One message cut into chunks of `part` elements needs no list (docs/program.md: the last ones shorter or empty).
struct DeviceChunk {
  char* data;
  uint64_t count;  // elements
};
struct DeviceChunks {
  char* data;
  uint64_t count, part;     // elements
  const DeviceChunk* list;  // null: cut as above
};

// Why a block gave up, the first time. `word` is stored last and is 0 while all is well.
struct Failure {
  uint64_t word;  // FailureWord
  uint64_t tag;   // of the slot that carried another call's
};
enum class FailureCause : uint32_t { none = 0, aborted = 1, timeout = 2, foreign_tag = 3 };
// step << 32 | peer << 8 | to_send << 7 | cause
inline constexpr int kFailureStep = 32, kFailurePeer = 8, kFailureToSend = 7;
inline constexpr uint64_t kFailurePeerMask = 0xffffff;

inline constexpr uint32_t kCallLowLatency = 1;
inline constexpr uint32_t kCallSizedTags = 2;  // as Run::sized_tags of core/interpreter.h
inline constexpr uint32_t kCallPremultiplied =
    4;  // every IN element is multiplied by `factor`, in its own type, where it is read

struct KernelCall {
  const int32_t* program;  // the packed table, as Program::load has accepted it
  const SenderEnd* senders;
  const ReaderEnd* readers;
  const ReceiverEnd* receivers;
  const uint64_t* abort;  // host-mapped; anything but 0 ends all blocks
  Failure* failures;      // by block
  DeviceChunks in, out;
  uint64_t piece;       // elements
  uint64_t loops;       // of the program over the chunks, without the lag
  uint64_t timeout_ns;  // since the kernel started; 0: none
  double factor;
  uint32_t
      stripe;  // bytes of one block's part of a slot, and of a slot: fixed for the life of a FIFO, whatever a call's piece and grid
  uint32_t slot_bytes;  // (a block that is late may still read its stripe when another one is a call ahead)
  uint32_t element;     // bytes
  uint32_t slots;
  uint32_t tag;
  uint32_t op;       // ReduceOp
  uint32_t variant;  // of the kernel: kernels.h
  uint32_t flags;
};
static_assert(sizeof(KernelCall) == 176);  // tests/cuda/test_fatbin.py compares it with the parameter in the PTX

// What the threads of a block tell each other within one step.
struct BlockShared {
  const char* source[kMaxSources];
  uint32_t source_flag[kMaxSources];  // 0: plain memory, else what each word of a low latency slot must carry
  int32_t source_peer[kMaxSources];   // whom a low latency slot is awaited from
  uint8_t source_scaled[kMaxSources];
  char* target[kMaxTargets];
  uint32_t target_flag[kMaxTargets];
  uint64_t failed;  // some thread of this block has given up; relaxed
};

}  // namespace ringcomm::cuda
