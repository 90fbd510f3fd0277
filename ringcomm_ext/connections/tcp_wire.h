// What travels over a data socket, and what all ends of one group share. For tcp*.cpp only.
//
//   writer -> reader   frames: | tag, 4 | length, 4 | payload | zeros up to a multiple of 8 |      so that every payload is aligned
//   reader -> writer   counts, 4 each: how many messages, of all there ever were (mod 2^32), the reader has released and flushed
//
// Little-endian. The highest bit of a length asks for a count with the next flush. Without it the reader saves most of them: it sends one when half a window
// is owed, or a millisecond after the last flush.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "connections/segment.h"
#include "connections/tcp.h"
#include "core/fifo.h"
#include "core/status.h"

namespace ringcomm {

struct FrameHeader {
  uint32_t tag;
  uint32_t length;  // with kAskCount
};
static_assert(sizeof(FrameHeader) == 8 && std::endian::native == std::endian::little);
inline constexpr uint32_t kAskCount = 1u << 31;

inline constexpr size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

// Messages that may be published and not yet counted by the reader. A reader owes less than half a window without saying so, and the rest of the window
// must hold as many messages as the connection has slots.
inline uint32_t window(uint32_t slots) { return std::max<uint32_t>(64, 2 * slots); }

// What the ends of one rank in one group share; outlives them.
struct TcpShared {
  WireGroup group;
  TcpPort& port;
  Doorbell& own;
  MemoryBudget& budget;
};

// Memory of this process that counts as the budget's.
class BudgetedMemory {
 public:
  BudgetedMemory() = default;
  BudgetedMemory(const BudgetedMemory&) = delete;
  BudgetedMemory& operator=(const BudgetedMemory&) = delete;
  ~BudgetedMemory() {
    if (data_ == nullptr) return;
    munmap(data_, bytes_);
    budget_->give(bytes_);
  }
  // Once. `what` names it in the error.
  bool take(size_t bytes, MemoryBudget& budget, const char* what, Error& error) {
    if (!budget.take(bytes)) return refuse(bytes, budget, what, error);
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      budget.give(bytes);
      return refuse(bytes, budget, what, error);
    }
    data_ = static_cast<char*>(data), bytes_ = bytes, budget_ = &budget;
    return true;
  }
  char* data() const { return data_; }

 private:
  static bool refuse(size_t bytes, const MemoryBudget& budget, const char* what, Error& error) {
    error.cause = Cause::no_memory;
    std::snprintf(
        error.text, sizeof error.text,
        "ringcomm: %s needs %zu bytes; this process already has %zu of the %zu that `memory.limit` allows: raise "
        "memory.limit, or lower memory.slot or memory.slots",
        what, bytes, budget.used(), budget.limit());
    return false;
  }
  char* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryBudget* budget_ = nullptr;
};

}  // namespace ringcomm
