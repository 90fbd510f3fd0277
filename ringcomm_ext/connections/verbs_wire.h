// What travels over a queue pair, and what all ends of one rank in one group share. For verbs*.cpp only. docs/rdma.md draws it.
//
//   writer -> reader   RDMA write with immediate; the value is the length. Up to 56 bytes go to a line of the reader, | position, 4 | tag, 4 | payload |;
//                      more to a slot of it, | payload | position, 4 | tag, 4 |
//   reader -> writer   RDMA write with immediate of nothing; the value is the count of messages released and flushed, mod 2^32
//
// The highest bit of a length asks for a count with the next flush, as over TCP.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "connections/verbs_net.h"
#include "connections/wire_group.h"
#include "core/doorbell.h"
#include "core/fifo.h"

namespace ringcomm {

struct VerbsLine {
  uint32_t position;  // of the message, from 1: what lies there from a round before is not taken for new
  uint32_t tag;
  char payload[kInlineBytes];
};
static_assert(sizeof(VerbsLine) == kCacheLine);
inline constexpr size_t kLineHead = offsetof(VerbsLine, payload);
// From one of the reader's slots to the next: the head lies behind the payload, wherever that ends, so that both go in one request and the payload lies as a reader likes it.
inline constexpr size_t verbs_stride(size_t capacity) { return capacity + kCacheLine; }
inline constexpr uint32_t kAskForCount = 1u << 31;

// Messages that may be published and not yet counted by the reader: so many receives each end has posted. A reader owes less than half of it without saying
// so; the rest must hold as many messages as the connection has slots.
inline uint32_t verbs_window(uint32_t slots) { return std::max<uint32_t>(64, 2 * slots); }

struct VerbsShared {
  WireGroup group;
  VerbsNet& net;
  Doorbell& own;
  MemoryBudget& budget;
};

// Who finds the other at it leaves. Nobody waits.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& taken) : taken_(taken), mine_(!taken.exchange(true, std::memory_order_seq_cst)) {}
  ~Turn() {
    if (mine_) taken_.store(false, std::memory_order_seq_cst);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return mine_; }

 private:
  std::atomic<bool>& taken_;
  const bool mine_;
};

}  // namespace ringcomm
