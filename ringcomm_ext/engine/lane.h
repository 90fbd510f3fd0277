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

// A lock nobody waits for: who does not get it lets the holder do the work. Sequentially consistent, because a thread that failed to get it goes to
// sleep on the doorbell and the holder looks at the doorbell's flag after unlocking.
class TryLock {
 public:
  bool try_lock() { return !taken_.exchange(true, std::memory_order_seq_cst); }
  void unlock() { taken_.store(false, std::memory_order_seq_cst); }

 private:
  std::atomic<bool> taken_{false};
};

// Requests that ended while a lock was held; delivered when it is free again.
using Ended = std::vector<RequestPtr>;

// Why a lane stands still.
struct Stall {
  RequestPtr request;
  int waits_for = -1;  // rank
  int step = -1;
  bool to_send = false;
  bool mismatch = false;         // waits_for's slot carries another call, or a message of another size:
  uint64_t sent_bytes = 0, expected_bytes = 0;
  const Error* broken = nullptr;  // the connection's own error
};

class Lane {
 public:
  // Any thread that holds the group's issue lock.
  void push(RequestPtr request, std::unique_ptr<Interpreter> interpreter);
  bool idle() const { return waiting_.load(std::memory_order_seq_cst) == 0; }

  // Drives what can move. Returns false if another thread has the lane or nothing moved; then `stall` may say why.
  bool drive(Ended& ended, Stall& stall);
  // Ends every request with `error`. False if another thread has the lane: it will see the failure itself.
  bool fail(const Error& error, Ended& ended);
  // The request at the front, or null.
  RequestPtr front();

 private:
  struct Part {
    RequestPtr request;
    std::unique_ptr<Interpreter> interpreter;
  };
  Part* head();
  void pop(const Error* error, Ended& ended);

  TryLock lock_;
  std::mutex queue_mutex_;
  std::deque<Part> queue_;
  std::atomic<int> waiting_{0};
};

}  // namespace ringcomm
