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

RequestPtr Lane::overdue(int64_t now) {
  const std::lock_guard<std::mutex> hold(queue_mutex_);
  for (const Part& part : queue_)
    if (part.request->deadline_ns <= now) return part.request;
  return nullptr;
}

void Lane::pop(const Error* error, Ended& ended) {
  Part part;
  {
    const std::lock_guard<std::mutex> hold(queue_mutex_);
    part = std::move(queue_.front());
    queue_.pop_front();
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
  }
  part.interpreter.reset();  // takes back what it lent, before another lane's thread may call the request done
  if (part.request->part_done(error)) ended.push_back(std::move(part.request));
}

bool Lane::drive(Ended& ended, Stall& stall) {
  bool moved = false, again = true;
  while (again && !idle() && lock_.try_lock()) {
    moved |= drive_held(ended, stall);
    again = lock_.unlock();
  }
  return moved;
}

bool Lane::drive_held(Ended& ended, Stall& stall) {
  bool moved = false;
  stall = Stall{};
  while (Part* part = head()) {
    Interpreter& run = *part->interpreter;
    const Progress progress = run.advance();
    if (run.lent()) part->request->lends.store(progress != Progress::done, std::memory_order_relaxed);
    if (progress == Progress::done) {
      if (run.borrowed()) part->request->borrowed.store(true, std::memory_order_relaxed);
      pop(nullptr, ended);
      moved = true;
      continue;
    }
    moved |= progress == Progress::moved;
    if (!part->begun) part->request->begun();
    part->begun = true;
    const bool failed = progress == Progress::failed;
    stall.request = part->request, stall.waits_for = run.waits_for(), stall.step = run.step(),
    stall.to_send = run.waits_to_send();
    stall.mismatch = failed && !run.error();
    stall.broken = failed ? run.error() : nullptr;
    if (stall.mismatch) stall.foreign_tag = run.foreign_tag(), stall.expected_bytes = run.expected_bytes();
    break;
  }
  return moved;
}

bool Lane::fail(const Error& error, Ended& ended) {
  bool again = true;
  while (again && !idle()) {
    if (!lock_.try_lock()) return false;
    while (head()) pop(&error, ended);
    again = lock_.unlock();
  }
  return true;
}

}  // namespace ringcomm
