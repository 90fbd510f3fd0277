#include "engine/lane.h"

#include <utility>

namespace ringcomm {

void Lane::push(RequestPtr request, std::unique_ptr<Interpreter> interpreter) {
  const std::lock_guard<std::mutex> hold(queue_mutex_);
  queue_.push_back({std::move(request), std::move(interpreter)});
  waiting_.fetch_add(1, std::memory_order_seq_cst);
}

// The front part stays where it is while others push behind it, so the pointer outlives the mutex.
Lane::Part* Lane::head() {
  const std::lock_guard<std::mutex> hold(queue_mutex_);
  return queue_.empty() ? nullptr : &queue_.front();
}

RequestPtr Lane::front() {
  const std::lock_guard<std::mutex> hold(queue_mutex_);
  return queue_.empty() ? nullptr : queue_.front().request;
}

void Lane::pop(const Error* error, Ended& ended) {
  Part part;
  {
    const std::lock_guard<std::mutex> hold(queue_mutex_);
    part = std::move(queue_.front());
    queue_.pop_front();
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (part.request->part_done(error)) ended.push_back(std::move(part.request));
}

bool Lane::drive(Ended& ended, Stall& stall) {
  if (idle() || !lock_.try_lock()) return false;
  bool moved = false;
  while (Part* part = head()) {
    Interpreter& run = *part->interpreter;
    const Progress progress = run.advance();
    if (progress == Progress::done) {
      pop(nullptr, ended);
      moved = true;
      continue;
    }
    moved |= progress == Progress::moved;
    const bool failed = progress == Progress::failed;
    stall.request = part->request, stall.waits_for = run.waits_for(), stall.step = run.step(), stall.to_send = run.waits_to_send();
    stall.mismatch = failed && !run.error();
    stall.broken = failed ? run.error() : nullptr;
    break;
  }
  lock_.unlock();
  return moved;
}

bool Lane::fail(const Error& error, Ended& ended) {
  if (idle()) return true;
  if (!lock_.try_lock()) return false;
  while (head()) pop(&error, ended);
  lock_.unlock();
  return true;
}

}  // namespace ringcomm
