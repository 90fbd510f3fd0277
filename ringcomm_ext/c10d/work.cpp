#include "c10d/work.h"

#include <algorithm>

#include "c10d/signals.h"
#include "engine/process.h"

namespace ringcomm {
namespace {

c10d::WorkResult result_of(const Error& error) {
  return error.cause == Cause::timeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
}

std::chrono::steady_clock::time_point at(int64_t ns) {  // CLOCK_MONOTONIC is what steady_clock reads on Linux
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace

std::exception_ptr exception_of(const Error& error) {
  try {
    TORCH_CHECK_WITH(DistBackendError, false, error.text);
  } catch (...) {
    return std::current_exception();
  }
}

void RingWork::begin(std::vector<RequestPtr> requests, std::function<void()> finalize,
                     std::shared_ptr<CompletionHook> hook) {
  requests_ = std::move(requests);
  finalize_ = std::move(finalize);
  hook_ = std::move(hook);
  if (hook_) hook_->expect_one();
  if (finalize_ || recordFunctionEndCallback_ || hook_) arm();
}

// From here on the end is followed on a callback thread (or right here if it is over already), even if the Work is dropped.
void RingWork::arm() {
  {
    const std::lock_guard<std::mutex> hold(settle_mutex_);
    if (armed_) return;
    armed_ = true;
  }
  follow(0);
}

void RingWork::follow(size_t request) {
  const auto self = c10::intrusive_ptr<RingWork>::unsafe_reclaim_from_nonowning(this);
  for (; request < requests_.size(); ++request)
    if (requests_[request]->attach([self, request] { self->follow(request + 1); })) return;
  settle();
  complete_futures();
  if (hook_) hook_->ended(info());
}

std::shared_ptr<c10d::WorkInfo> RingWork::info() const {
  int64_t first = INT64_MAX, last = 0;
  span(first, last);
  const std::chrono::duration<float> took(static_cast<float>(last - first) * 1e-9f);
  return std::make_shared<c10d::WorkInfo>(opType_, getSequencenumber(), at(first), at(last), took);
}

void RingWork::settle() {
  if (settled_.load(std::memory_order_acquire)) return;
  const std::lock_guard<std::mutex> hold(settle_mutex_);
  if (settled_.load(std::memory_order_relaxed)) return;
  for (const RequestPtr& r : requests_)
    if (r->error() && !failure_) failure_ = exception_of(*r->error());
  if (!failure_ && finalize_) {
    try {
      finalize_();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  finalize_ = nullptr;
  if (recordFunctionEndCallback_) {
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
  settled_.store(true, std::memory_order_release);
}

void RingWork::complete_futures() {
  FuturePtr future, future_result;
  {
    const std::lock_guard<std::mutex> hold(settle_mutex_);
    over_ = true;
    future = future_;
    future_result = future_result_;
  }
  if (future) complete(*future);
  if (future_result) complete_result(*future_result);
}

void RingWork::complete(c10::ivalue::Future& future) const {
  if (failure_)
    future.setError(failure_);
  else
    future.markCompleted(c10::IValue(outputs_));
}

void RingWork::complete_result(c10::ivalue::Future& future) const {
  future.markCompleted(c10::IValue(static_cast<int64_t>(outcome())));
}

// Whichever comes second, the future or the end, completes it.
RingWork::FuturePtr RingWork::future_in(FuturePtr& place, const c10::TypePtr& type, Complete complete) {
  bool over;
  {
    const std::lock_guard<std::mutex> hold(settle_mutex_);
    if (place) return place;
    place = c10::make_intrusive<c10::ivalue::Future>(type);
    over = over_;
  }
  if (over)
    (this->*complete)(*place);
  else
    arm();
  return place;
}

RingWork::FuturePtr RingWork::getFuture() {
  return future_in(future_, c10::ListType::create(c10::TensorType::get()), &RingWork::complete);
}

RingWork::FuturePtr RingWork::getFutureResult() {
  return future_in(future_result_, c10::IntType::get(), &RingWork::complete_result);
}

c10d::WorkResult RingWork::outcome() const {
  for (const RequestPtr& r : requests_)
    if (r->error()) return result_of(*r->error());
  return failure_ ? c10d::WorkResult::UNKNOWN : c10d::WorkResult::SUCCESS;
}

bool RingWork::isCompleted() {
  if (!std::all_of(requests_.begin(), requests_.end(), [](const RequestPtr& r) { return r->done(); })) return false;
  if (settled_.load(std::memory_order_acquire)) return true;
  {  // a callback thread may be copying the result to where it belongs, which nobody who only asks waits for
    const std::unique_lock<std::mutex> hold(settle_mutex_, std::try_to_lock);
    if (!hold) return false;
  }
  settle();
  return true;
}

bool RingWork::isSuccess() const {
  const_cast<RingWork*>(this)->isCompleted();
  return settled_.load() && !failure_;
}

std::exception_ptr RingWork::exception() const {
  const_cast<RingWork*>(this)->isCompleted();
  return settled_.load() ? failure_ : nullptr;
}

int RingWork::sourceRank() const {
  TORCH_CHECK(opType_ == c10d::OpType::RECV || opType_ == c10d::OpType::RECVANYSOURCE,
              "ringcomm: sourceRank() is for receives");
  return requests_.empty() ? -1 : requests_[0]->source;
}

void RingWork::wait_for(Request& request, int64_t until_ns) {
  TORCH_CHECK(!forked(), "ringcomm: this call of group '", group_->spec().name,
              "' belongs to the process that made it; this is a child forked since");
  std::exception_ptr raised;
  if (group_->wait(request, until_ns, [&raised] { return signals_raise(raised); })) return;
  if (raised) std::rethrow_exception(raised);
  const std::string who = group_->who_is_missing(request);
  TORCH_CHECK_WITH(DistBackendError, false, "ringcomm: Timed out after ", (now_ns() - request.started_ns) / 1000000,
                   " ms in Work.wait(timeout) for ", name(request.call.collective), " of group '", group_->spec().name,
                   "' (the call itself goes on): ", who);
}

bool RingWork::wait(std::chrono::milliseconds timeout) {
  const int64_t until = timeout.count() > 0 ? after_ms(timeout.count()) : kNoDeadline;
  for (const RequestPtr& r : requests_) wait_for(*r, until);
  settle();
  if (failure_) std::rethrow_exception(failure_);
  return true;
}

void RingWork::abort() {
  if (!forked()) group_->abort("Work.abort() was called");
}

void RingWork::span(int64_t& first_ns, int64_t& last_ns) const {
  for (const RequestPtr& r : requests_) {
    TORCH_CHECK(r->done(), "ringcomm: getDuration() of a call that has not completed");
    first_ns = std::min(first_ns, r->started_ns);
    last_ns = std::max(last_ns, r->ended_ns());
  }
}

float RingWork::getDuration() const {
  int64_t first = INT64_MAX, last = 0;
  span(first, last);
  return requests_.empty() ? 0.f : static_cast<float>(last - first) * 1e-6f;
}

uint64_t RingWork::getSequencenumber() const { return requests_.empty() ? 0 : requests_.back()->call.sequence; }

}  // namespace ringcomm
