#include "c10d/coalescing.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>

namespace ringcomm {

// ---------------------------------------------------------------------------------------------------------------- blocks

void Block::add(CallWorkPtr work) {
  sequence = std::max(sequence, work->getSequencenumber());
  if (works.size() >= look_at) {
    works.erase(std::remove_if(works.begin(), works.end(),
                               [this](const CallWorkPtr& w) {
                                 if (!w->isSuccess()) return false;
                                 w->span(first_ns, last_ns);
                                 return true;
                               }),
                works.end());
    look_at = std::max<size_t>(8, 2 * works.size());
  }
  works.push_back(std::move(work));
}

void Block::add(Block&& inner) {
  first_ns = std::min(first_ns, inner.first_ns);
  last_ns = std::max(last_ns, inner.last_ns);
  sequence = std::max(sequence, inner.sequence);
  for (CallWorkPtr& w : inner.works) add(std::move(w));
}

// Only its own thread adds and removes a stack, and only that thread looks into it: the lock is for the map. What a stack holds is let go of outside
// of it, for releasing a tensor may take Python's lock.
std::vector<Block>* Blocks::mine() {
  const std::lock_guard<std::mutex> hold(mutex_);
  const auto it = blocks_.find(std::this_thread::get_id());
  return it == blocks_.end() ? nullptr : &it->second;
}

void Blocks::open() {
  std::vector<Block>* stack;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    stack = &blocks_[std::this_thread::get_id()];
  }
  if (stack->size() == kDeepest) {
    stack->erase(stack->begin());
    open_.fetch_sub(1, std::memory_order_relaxed);
  }
  stack->emplace_back();
  open_.fetch_add(1, std::memory_order_relaxed);
}

void Blocks::add(const CallWorkPtr& work) {
  if (std::vector<Block>* stack = mine()) stack->back().add(work);
}

bool Blocks::close(Block& block) {
  std::vector<Block>* stack = mine();
  if (!stack) return false;
  block = std::move(stack->back());
  stack->pop_back();
  open_.fetch_sub(1, std::memory_order_relaxed);
  if (!stack->empty()) {
    stack->back().add(Block(block));
    return true;
  }
  const std::lock_guard<std::mutex> hold(mutex_);
  blocks_.erase(std::this_thread::get_id());
  return true;
}

// ---------------------------------------------------------------------------------------------------------------- the one work

bool CoalescedWork::isCompleted() {
  return std::all_of(block_.works.begin(), block_.works.end(), [](const CallWorkPtr& w) { return w->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(block_.works.begin(), block_.works.end(), [](const CallWorkPtr& w) { return w->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const CallWorkPtr& w : block_.works)
    if (const std::exception_ptr e = w->exception()) return e;
  return nullptr;
}

// `timeout` is for all of them together.
bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  const bool limited = timeout.count() > 0;
  const int64_t until = limited ? after_ms(timeout.count()) : kNoDeadline;
  for (const CallWorkPtr& w : block_.works)
    w->wait(limited ? milliseconds(std::max<int64_t>(1, (until - now_ns()) / 1'000'000)) : kNoTimeout);
  return true;
}

void CoalescedWork::abort() {
  if (!block_.works.empty()) block_.works.front()->abort();
}

void CoalescedWork::synchronize() {
  for (const CallWorkPtr& w : block_.works)
    if (w->stream()) w->synchronize();
}

// Once, when the last of these futures is complete: on a callback thread, or right here.
void CoalescedWork::after_all(Get future, std::function<void()> then) {
  const auto left = std::make_shared<std::atomic<size_t>>(block_.works.size());
  if (block_.works.empty()) return then();
  for (const CallWorkPtr& w : block_.works)
    (*w.*future)()->addCallback([left, then](c10::ivalue::Future&) {
      if (left->fetch_sub(1) == 1) then();
    });
}

std::vector<c10::Device> CoalescedWork::devices() const {
  for (const CallWorkPtr& w : block_.works)
    if (const std::optional<c10::Stream> stream = w->stream()) return {stream->device()};  // a group has one
  return {};
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  {
    const std::lock_guard<std::mutex> hold(futures_mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices());
  }
  const auto self = c10::intrusive_ptr<CoalescedWork>::unsafe_reclaim_from_nonowning(this);
  after_all(&c10d::Work::getFuture, [self, future = future_] {
    if (const std::exception_ptr e = self->exception()) return future->setError(e);
    // Calls on a device are under way still: the future stands for what is enqueued behind them.
    std::vector<at::Tensor> outputs;
    c10::OptionalStreamGuard on;
    for (const CallWorkPtr& w : self->block_.works) {
      const std::optional<c10::Stream> stream = w->stream();
      if (!stream) continue;
      on.reset_stream(*stream);
      for (at::Tensor& t : w->result()) outputs.push_back(t);
    }
    future->markCompleted(c10::IValue(outputs));
  });
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFutureResult() {
  {
    const std::lock_guard<std::mutex> hold(futures_mutex_);
    if (future_result_) return future_result_;
    future_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  }
  const auto self = c10::intrusive_ptr<CoalescedWork>::unsafe_reclaim_from_nonowning(this);
  after_all(&c10d::Work::getFutureResult, [self, future = future_result_] {
    c10d::WorkResult result = c10d::WorkResult::SUCCESS;
    for (const CallWorkPtr& w : self->block_.works)
      if (result == c10d::WorkResult::SUCCESS) result = w->outcome();
    future->markCompleted(c10::IValue(static_cast<int64_t>(result)));
  });
  return future_result_;
}

float CoalescedWork::getDuration() const {
  int64_t first = block_.first_ns, last = block_.last_ns;
  for (const CallWorkPtr& w : block_.works) w->span(first, last);
  return last > first ? static_cast<float>(last - first) * 1e-6f : 0.f;
}

}  // namespace ringcomm
