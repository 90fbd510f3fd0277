#include "connections/late_counts.h"

#include <algorithm>

namespace ringcomm {
namespace {

constexpr int64_t kLateNs = 1'000'000;  // guessed: long against a collective, short against what notices

}  // namespace

LateCounts::~LateCounts() { stop(); }

void LateCounts::add(OwesCounts* receiver) {
  const std::lock_guard<std::mutex> hold(mutex_);
  receivers_.push_back(receiver);
}

void LateCounts::stop() {
  EventLoop::TimerId timer;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    stopped_ = true;
    timer = timer_;
  }
  loop_.cancel(timer);
}

bool LateCounts::all_told() {
  const std::lock_guard<std::mutex> hold(mutex_);
  return std::all_of(receivers_.begin(), receivers_.end(), [](OwesCounts* r) { return r->told(); });
}

void LateCounts::schedule() {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (!stopped_) timer_ = loop_.at(now_ns() + kLateNs, [this] { look(); });
}

// All of it under the lock: then a look whose timer is not timer_ any more is past the lock, and stop() need not know of it. The mark is taken back
// before the look: who flushes afterwards sets it again.
void LateCounts::look() {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (stopped_) return;
  due_.store(false, std::memory_order_seq_cst);
  bool owed = false;
  for (OwesCounts* r : receivers_) owed |= r->count_late();
  if (owed && !due_.exchange(true)) timer_ = loop_.at(now_ns() + kLateNs, [this] { look(); });
}

}  // namespace ringcomm
