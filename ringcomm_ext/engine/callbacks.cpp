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
// Threads that take callbacks as soon as they come, and for how long none must return before one more is needed, for each that is there already (a busy machine is
// slow, not blocked). Both guessed.
constexpr int kAtOnce = 2;
constexpr std::chrono::milliseconds kPatience{1};

}  // namespace

void Callbacks::run(std::function<void()> callback) {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (stopping_) return;
  queue_.push_back(std::move(callback));
  if (free_ > 0)
    wake_.notify_one();
  else
    need_one();
}

// Whenever something is queued one thread is free, or watches whether those inside callbacks get on: what waits for what is queued cannot hold it up.
void Callbacks::need_one() {
  if (watched_) return;
  if (threads_ >= kMostThreads) {
    if (std::exchange(warned_, true)) return;
    std::fprintf(stderr,
                 "ringcomm: all %d callback threads are inside callbacks of futures; further callbacks wait for one of "
                 "them to return. Callbacks that wait for "
                 "each other can hang here.\n",
                 kMostThreads);
    return;
  }
  try {
    start_thread("rc-callback", [this] { work(); }).detach();
    watched_ = true;
    ++threads_;
  } catch (const std::system_error& e) {  // the process may have no more threads; others may come to take it
    std::fprintf(stderr, "ringcomm: no thread for the callback of a future (%s)%s\n", e.what(),
                 threads_ > 0 ? "; it waits for another to end" : "; it waits for the next callback");
  }
}

// Returns when this thread is needed: at once if it is one of few, else when no callback has returned for a while. A burst of short ones needs no more threads.
void Callbacks::watch(std::unique_lock<std::mutex>& hold) {
  while (threads_ > kAtOnce && !queue_.empty() && !stopping_) {
    const uint64_t before = returned_;
    halt_.wait_for(hold, threads_ * kPatience, [this] { return stopping_; });
    if (returned_ == before) break;
  }
  watched_ = false;
}

void Callbacks::work() {
  std::unique_lock<std::mutex> hold(mutex_);
  watch(hold);
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
    if (!queue_.empty() && free_ == 0) need_one();
    busy_.push_back(pthread_self());
    hold.unlock();
    callback();
    callback = nullptr;  // what it held is released outside the lock
    hold.lock();
    busy_.erase(std::find(busy_.begin(), busy_.end(), pthread_self()));
    ++returned_;
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
  halt_.notify_all();
  idle_.wait_for(hold, std::chrono::nanoseconds(timeout_ns), [this] { return threads_ == 0; });
  hold.unlock();
}

}  // namespace ringcomm
