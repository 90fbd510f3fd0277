#include "c10d/completion_hook.h"

#include <chrono>

#include "core/log.h"

namespace ringcomm {

void CompletionHook::expect_one() {
  const std::lock_guard<std::mutex> hold(mutex_);
  ++pending_;
}

void CompletionHook::ended(std::shared_ptr<c10d::WorkInfo> info) {
  const std::lock_guard<std::mutex> hold(mutex_);
  queue_.push_back(std::move(info));
  if (draining_) return;
  draining_ = true;
  callbacks_.run([self = shared_from_this()] { self->drain(); });
}

void CompletionHook::drain() {
  std::unique_lock<std::mutex> hold(mutex_);
  drainer_ = std::this_thread::get_id();
  while (!queue_.empty()) {
    const auto info = std::move(queue_.front());
    queue_.pop_front();
    hold.unlock();
    call(info);
    hold.lock();
    if (--pending_ == 0) none_left_.notify_all();
  }
  draining_ = false;
  drainer_ = {};
}

// What a hook raises has nobody to go to: the work has ended and is not to blame.
void CompletionHook::call(const std::shared_ptr<c10d::WorkInfo>& info) {
  std::shared_ptr<Function> function;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    function = function_;
  }
  if (!function) return;
  try {
    (*function)(info);
  } catch (const std::exception& e) {
    log(LogLevel::warn, std::string("a completion hook raised: ") + e.what());
  }
}

bool CompletionHook::wait(const std::function<bool()>& stop) {
  std::unique_lock<std::mutex> hold(mutex_);
  if (drainer_ == std::this_thread::get_id())
    return true;  // a hook that destroys its group: its own work is not over before it
  const auto idle = [this] { return pending_ == 0; };
  while (!none_left_.wait_for(hold, std::chrono::milliseconds(200), idle)) {
    hold.unlock();
    if (stop()) return false;
    hold.lock();
  }
  return true;
}

void CompletionHook::close() {
  std::shared_ptr<Function> last;  // released with no lock held
  const std::lock_guard<std::mutex> hold(mutex_);
  last.swap(function_);
}

}  // namespace ringcomm
