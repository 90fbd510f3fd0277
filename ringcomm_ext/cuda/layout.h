// Where everything lies in the memory that each rank of a group shares with the others' kernels, and the ends that a program's connection tables stand for. Host side: it
// computes addresses and touches nothing behind them.
//
// Every rank has one segment, laid out alike; all of it must be 0 before the first kernel of any rank runs.
//
//   heads       [kind][writer][block]             of the FIFOs this rank reads
//   credits     [low latency][kind][reader][block] of the FIFOs this rank writes
//   positions   [low latency][kind][peer][block]  of this rank's ends, senders then receivers; nobody else's business
//   slots       pair: from each writer | fan-out: this rank's own | low latency, both kinds: from each writer
#pragma once

#include <string>
#include <vector>

#include "core/program.h"
#include "cuda/kernel_call.h"

namespace ringcomm::cuda {

struct DeviceFifoShape {
  int ranks = 2;
  int blocks = 1;          // at most, of any kernel that uses these FIFOs
  uint32_t slots = 4;      // 1, 2, 4 or 8; no fewer than any program was verified for
  size_t slot = 0;         // bytes of data in a slot, all blocks together
  size_t low_latency = 0;  // the same of a low latency slot, which takes about twice as much; 0: there are none
};

struct DeviceEnds {
  std::vector<SenderEnd> senders;
  std::vector<ReaderEnd> readers;
  std::vector<ReceiverEnd> receivers;
};

class DeviceLayout {
 public:
  explicit DeviceLayout(const DeviceFifoShape& shape);

  size_t bytes() const { return bytes_; }  // of one segment
  const DeviceFifoShape& shape() const { return shape_; }

  // Empty, or the sentence that says why no kernel can run this program over these FIFOs.
  std::string refusal(const Program& program, bool low_latency) const;

  // The ends of the program's tables, in their order. `segments`: by rank, as this rank's device has them mapped.
  DeviceEnds ends(const Program& program, bool low_latency, const std::vector<char*>& segments) const;

  // Fills in what a call knows from the FIFOs: slots, stripe, slot_bytes and the flag for low latency.
  void describe(bool low_latency, KernelCall& call) const;

  // The most bytes of a piece that `blocks` blocks can take.
  size_t largest_piece(bool low_latency, int blocks) const;

 private:
  struct Part {
    size_t at = 0, each = 0;  // offset of the first, distance to the next
  };
  size_t reserve(size_t count, size_t each, Part& part);
  static int skip_self(int peer, int self) { return peer < self ? peer : peer - 1; }
  int fifo(bool low_latency, ConnectionKind kind) const { return 2 * low_latency + static_cast<int>(kind); }
  char* slots_for(bool low_latency, ConnectionKind kind, int writer, int reader,
                  const std::vector<char*>& segments) const;
  template <class Line>
  Line* lines(const Part& part, char* segment, int fifo, int owner, int peer) const;

  const DeviceFifoShape shape_;
  size_t bytes_ = 0;
  size_t stripe_[2], slot_bytes_[2];  // plain, low latency
  Part heads_, credits_, sender_positions_, receiver_positions_;
  Part slots_[4];  // by fifo(): from each writer; of a plain fan-out one
};

// How often a program with these chunks loops (KernelCall::loops). A list of chunks must be readable here.
uint64_t loops_of(const Program& program, const KernelCall& call);

}  // namespace ringcomm::cuda
