// One call inside the engine: a collective or one end of a message. Shared by the torch Work, the queue it stands in, and whoever waits.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "engine/board.h"
#include "engine/flight_record.h"

namespace ringcomm {

class Request {
 public:
  Request(const Fingerprint& call, int64_t deadline_ns, std::shared_ptr<void> keep)
      : call(call), deadline_ns(deadline_ns), started_ns(now_ns()), keep_(std::move(keep)) {}

  const Fingerprint call;
  const int64_t deadline_ns;
  const int64_t started_ns;
  bool large = false;              // so much work that async callers leave it to the driver; set before it is queued
  int source = -1;                 // recv: who sent it; valid once done
  FlightRecord* flight = nullptr;  // where it is recorded, if it is; set before it is queued
  uint64_t flight_id = 0;
  // Lending (docs/registered_memory.md): readers may still read this call's memory; this call has read memory of others.
  std::atomic<bool> lends{false}, borrowed{false};

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  // Valid once done; null on success.
  const Error* error() const { return error_.get(); }
  int64_t ended_ns() const { return ended_ns_; }

  // `then` runs on a callback thread after completion. False: already done, the caller runs it itself. At most one per request.
  bool attach(std::function<void()> then) {
    then_ = std::move(then);
    int expected = kPending;
    if (state_.compare_exchange_strong(expected, kWanted)) return true;
    then_ = nullptr;
    return false;
  }

  // --- the engine's side; the holder of the lane ---
  void set_parts(int parts) { parts_left_.store(parts, std::memory_order_relaxed); }
  // One lane is through with it (with an error or not). True when it was the last: then complete() must follow.
  bool part_done(const Error* error) {
    if (error) spoil(*error);
    return parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }
  // Its lane has come to it, and it takes longer than that.
  void begun() {
    if (flight) flight->started(flight_id, now_ns());
  }
  // It ends with this error, unless it has one already. Before complete().
  void spoil(const Error& error) {
    const std::lock_guard<std::mutex> hold(error_mutex_);
    if (!error_) error_ = std::make_unique<Error>(error);
  }
  // Makes it done. Returns the callback to hand to a callback thread, if any.
  std::function<void()> complete() {
    ended_ns_ = now_ns();
    if (flight) flight->ended(flight_id, ended_ns_, error_ != nullptr);
    return state_.exchange(kDone, std::memory_order_acq_rel) == kWanted ? std::move(then_) : nullptr;
  }

 private:
  static constexpr int kPending = 0, kWanted = 1, kDone = 2;
  std::atomic<int> state_{kPending};
  std::atomic<int> parts_left_{1};
  std::mutex error_mutex_;
  std::unique_ptr<Error> error_;
  int64_t ended_ns_ = 0;
  std::function<void()> then_;
  const std::shared_ptr<void> keep_;  // owns the caller's buffers
};
using RequestPtr = std::shared_ptr<Request>;

}  // namespace ringcomm
