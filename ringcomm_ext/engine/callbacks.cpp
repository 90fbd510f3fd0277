#include "engine/callbacks.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/threads.h"

namespace ringcomm {
namespace {

// Completions come in bursts (the buckets of a backward pass): a few yields cost less than a sleep and a wake for each.
constexpr int kYields = 20;

}  // namespace

void Callbacks::run(std::function<void()> callback) {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (stopping_) return;
  queue_.push_back(std::move(callback));
  if (static_cast<int>(queue_.size()) <= free_) {
    wake_.notify_one();
  } else if (threads_ < kMostThreads) {
    try {
      start_thread("rc-callback", [this] { work(); }).detach();
      ++threads_;
    } catch (const std::system_error& e) {  // the process may have no more threads; others may come to take it
      std::fprintf(stderr, "ringcomm: no thread for the callback of a future (%s)%s\n", e.what(),
                   threads_ > 0 ? "; it waits for another to end" : "; it waits for the next callback");
    }
  } else if (!warned_) {
    warned_ = true;
    std::fprintf(stderr,
                 "ringcomm: all %d callback threads are inside callbacks of futures; further callbacks wait for one of "
                 "them to return. Callbacks that wait for "
                 "each other can hang here.\n",
                 kMostThreads);
  }
}

void Callbacks::work() {
  std::unique_lock<std::mutex> hold(mutex_);
  while (true) {
    ++free_;
    for (int i = 0; i < kYields && queue_.empty() && !stopping_; ++i) {
      hold.unlock();
      sched_yield();
      hold.lock();
    }
    wake_.wait(hold, [this] { return stopping_ || !queue_.empty(); });
    --free_;
    if (stopping_) break;
    auto callback = std::move(queue_.front());
    queue_.pop_front();
    busy_.push_back(pthread_self());
    hold.unlock();
    callback();
    callback = nullptr;  // what it held is released outside the lock
    hold.lock();
    busy_.erase(std::find(busy_.begin(), busy_.end(), pthread_self()));
  }
  if (--threads_ == 0) idle_.notify_all();
}

std::vector<unsigned long> Callbacks::busy() {
  const std::lock_guard<std::mutex> hold(mutex_);
  return busy_;
}

void Callbacks::stop(long timeout_ns) {
  std::deque<std::function<void()>> dropped;  // released with no lock held: what they hold may need Python's lock
  std::unique_lock<std::mutex> hold(mutex_);
  stopping_ = true;
  dropped.swap(queue_);
  wake_.notify_all();
  idle_.wait_for(hold, std::chrono::nanoseconds(timeout_ns), [this] { return threads_ == 0; });
  hold.unlock();
}

}  // namespace ringcomm
