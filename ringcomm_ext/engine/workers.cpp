// Who drives groups when no caller does: the driver threads of an engine, and the poller's look at work that was left alone.
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "engine/communicator.h"
#include "engine/engine.h"
#include "engine/threads.h"

namespace ringcomm {
namespace {

// The longest sleep of a driver on duty. Nothing relies on it but deadlines; the model check has no such cap.
constexpr int64_t kLookAgainNs = 200'000'000;

}  // namespace

// The order against the poller: work is queued before the timer is claimed here; there the claim is given back before the look. So either the
// poller's look sees the work, or this sets the timer anew.
void Engine::drive_soon() {
  if (timer_set_.exchange(true, std::memory_order_seq_cst)) return;
  const itimerspec once{{0, 0}, {0, static_cast<long>(soon_ns_.load(std::memory_order_relaxed))}};
  timerfd_settime(timer_, 0, &once, nullptr);
}

// Work issued a moment ago is left alone: its caller is most likely on the way to wait() and would find its core taken. It is looked at later; only
// work that was found to lie around brings the next look forward again.
void Engine::look_after_all() {
  uint64_t count;
  [[maybe_unused]] const auto n = read(timer_, &count, sizeof count);
  timer_set_.store(false, std::memory_order_seq_cst);
  bool found = false, left = false, young = false;
  uint64_t version;
  for (const CommunicatorPtr& group : groups(version)) {
    if (!group->wants_driver(0)) continue;
    if (now_ns() - group->last_left_ns() < kYoungNs) {
      young = true;
      continue;
    }
    found = true;
    group->advance();
    left |= group->wants_driver(0);
  }
  young_looks_ = young && !found ? std::min(young_looks_ + 1, kMostYoungLooks) : 0;
  // The first time, what is young may be the last of several calls that nobody waits for but through a Future: it is looked at as soon as it is old
  // enough. Time after time, it is a caller that waits for each of its calls.
  const int64_t idle = std::min(2 * soon_ns_.load(std::memory_order_relaxed), kLatestNs);
  soon_ns_.store(found ? kSoonNs : young ? kYoungNs << (young_looks_ - 1) : idle, std::memory_order_relaxed);
  if (young) drive_soon();
  if (left) wake_drivers();
}

// A parked driver wakes by its own word; one asleep on the doorbell looks at the word after raising the flag, or is rung here.
void Engine::wake_drivers() {
  driver_word_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) futex_wake_all(driver_word_, false);
  doorbell().ring();
}

void Engine::drive(int worker) {
  std::vector<CommunicatorPtr> mine;
  uint64_t version = 0;
  Backoff backoff(options_.driver);
  int64_t next_look = 0;
  while (!stopping_) {
    const uint32_t seen = driver_word_.load(std::memory_order_seq_cst);
    if (version != version_.load()) mine = groups(version);
    bool duty = false, moved = false;
    const auto look = [&] {
      for (const CommunicatorPtr& group : mine)
        if (group->wants_driver(worker)) duty = true, moved |= group->advance();
    };
    look();
    if (moved) {
      backoff.reset();
      // One group that keeps this thread busy must not hide that another is overdue.
      if (const int64_t now = now_ns(); now >= next_look) {
        next_look = now + kLookAgainNs;
        for (const CommunicatorPtr& group : mine) group->look_at_deadlines(now);
      }
      continue;
    }
    if (!duty) {
      backoff.reset();
      parked_.fetch_add(1, std::memory_order_seq_cst);
      look();
      if (!duty && !stopping_ && version == version_.load()) {
        mine.clear();  // a parked driver keeps no group alive
        version = 0;
        futex_sleep(driver_word_, seen, INT64_MAX / 2, false);
      }
      parked_.fetch_sub(1, std::memory_order_seq_cst);
      continue;
    }
    if (backoff.stay_awake()) continue;
    const uint32_t bell = doorbell().raise();
    look();
    if (moved || stopping_ || seen != driver_word_.load(std::memory_order_seq_cst)) continue;
    const int64_t now = now_ns();
    for (const CommunicatorPtr& group : mine) group->look_at_deadlines(now);
    doorbell().sleep(bell, kLookAgainNs);
  }
}

}  // namespace ringcomm
