// A lane: one channel of one group. Requests take turns on its connections in issue order; one thread at a time drives it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/interpreter.h"
#include "engine/request.h"

namespace ringcomm {

// A lock nobody waits for: who does not get it leaves a mark, and the holder, once it has unlocked, looks again on its behalf.
// Without the mark a wake-up is lost: B holds the lock and has looked; a message is published, nobody sleeps, nobody is rung; A raises the
// doorbell's flag, fails to get the lock and sleeps; B unlocks and is called away. Sequentially consistent, because A's raised flag must be
// seen by whoever publishes after the holder's second look. tests/model explores it.
class TryLock {
 public:
  bool try_lock() {
    while (true) {
      uint32_t state = kFree;
      if (state_.compare_exchange_strong(state, kHeld)) return true;
      if (state == kWanted || state_.compare_exchange_strong(state = kHeld, kWanted)) return false;
    }
  }
  // True: somebody failed to get it meanwhile; the caller must look again at what it guards.
  bool unlock() { return state_.exchange(kFree) == kWanted; }

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1, kWanted = 2;
  std::atomic<uint32_t> state_{kFree};
};

// Requests that ended while a lock was held; delivered when it is free again.
using Ended = std::vector<RequestPtr>;

// Why a lane stands still.
struct Stall {
  RequestPtr request;
  int waits_for = -1;  // rank
  int step = -1;
  bool to_send = false;
  bool mismatch = false;  // waits_for's slot carries another call (its tag), or a message of another size:
  uint32_t foreign_tag = 0;
  uint64_t sent_bytes = 0, expected_bytes = 0;
  const Error* broken = nullptr;  // the connection's own error
};

class Lane {
 public:
  // Any thread that holds the group's issue lock.
  void push(RequestPtr request, std::unique_ptr<Interpreter> interpreter);
  bool idle() const { return waiting_.load(std::memory_order_seq_cst) == 0; }

  // Drives what can move. Returns false if another thread has the lane (it will look for this one) or nothing moved; then `stall` may say why.
  bool drive(Ended& ended, Stall& stall);
  // Ends every request with `error`. False if another thread has the lane: it will see the failure itself.
  bool fail(const Error& error, Ended& ended);
  // The request at the front, or null.
  RequestPtr front();
  // A request whose deadline has passed, wherever it stands in the queue, or null.
  RequestPtr overdue(int64_t now);

 private:
  struct Part {
    RequestPtr request;
    std::unique_ptr<Interpreter> interpreter;
    bool begun = false;
  };
  bool drive_held(Ended& ended, Stall& stall);
  Part* head();
  void pop(const Error* error, Ended& ended);

  TryLock lock_;
  std::mutex queue_mutex_;
  std::deque<Part> queue_;
  std::atomic<int> waiting_{0};
};

}  // namespace ringcomm
