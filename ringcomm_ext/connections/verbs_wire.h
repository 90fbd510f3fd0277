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
#include <mutex>
#include <string>

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

// Whether a connection is broken, by whom and since when. The first reason counts, but for one that is a mere consequence of another (a flushed request, a closed
// socket): the other may come later, or be told by the other end, so a consequence waits longer. Any thread.
class Breakage {
 public:
  // True: it was whole before.
  bool set(const Error& reason, int peer, bool consequence = false) {
    const std::lock_guard<std::mutex> hold(mutex_);
    const bool broken = broken_.load(std::memory_order_relaxed);
    if (broken && (consequence || !consequence_)) return false;
    reason_ = reason;
    reason_.rank = reason_.peer = peer;
    consequence_ = consequence;
    if (broken) return false;
    at_ns_ = now_ns();
    broken_.store(true, std::memory_order_seq_cst);
    return true;
  }
  explicit operator bool() const { return broken_.load(std::memory_order_acquire); }
  // Fills `error` once it has been broken for the time of grace; what is no fault of a peer's is told at once.
  bool lost(int64_t grace_ns, Error& error) const {
    if (!*this) return false;
    const std::lock_guard<std::mutex> hold(mutex_);
    const int64_t wait_ns = grace_ns + (consequence_ ? kForTheReasonNs : 0);
    if (reason_.cause == Cause::connection && now_ns() - at_ns_ < wait_ns) return false;
    error = reason_;
    return true;
  }

 private:
  static constexpr int64_t kForTheReasonNs =
      500'000'000;  // guessed: long against what it takes the other end to tell all
  mutable std::mutex mutex_;
  std::atomic<bool> broken_{false};
  bool consequence_ = false;
  Error reason_;
  int64_t at_ns_ = 0;
};

// The sentence about a broken connection. `way`: "to" or "from".
Error broken_text(const char* way, int peer, const std::string& where, const VerbsDevice& device, const char* what);

// What failed completions mean: the first that is not a mere consequence.
class FirstFailure {
 public:
  void add(const ibv::Wc& wc) {
    if (!any_ || (status_ == ibv::kWcFlushed && wc.status != ibv::kWcFlushed))
      status_ = wc.status, vendor_ = wc.vendor_err;
    any_ = true;
  }
  explicit operator bool() const { return any_; }
  bool consequence() const { return status_ == ibv::kWcFlushed; }
  int status() const { return status_; }
  uint32_t vendor() const { return vendor_; }
  std::string text() const { return completion_text(status_, vendor_); }

 private:
  bool any_ = false;
  int status_ = 0;
  uint32_t vendor_ = 0;
};

}  // namespace ringcomm
