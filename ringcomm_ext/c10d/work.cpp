#include "c10d/work.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>

#include "engine/process.h"

namespace py = pybind11;

namespace ringcomm {
namespace {

std::exception_ptr exception_of(const Error& error) {
  try {
    TORCH_CHECK_WITH(DistBackendError, false, error.text);
  } catch (...) {
    return std::current_exception();
  }
}

// Runs Python's signal handlers; true if one raised (then the exception is in `raised`).
bool signals_raise(std::exception_ptr& raised) {
  // Python runs handlers on its main thread only, which is the process's; others need not wait for Python's lock here.
  if (!Py_IsInitialized() || gettid() != getpid()) return false;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return false;
  try {
    throw py::error_already_set();
  } catch (...) {
    raised = std::current_exception();
  }
  return true;
}

}  // namespace

void RingWork::begin(std::vector<RequestPtr> requests, std::function<void()> finalize) {
  requests_ = std::move(requests);
  finalize_ = std::move(finalize);
  if (finalize_ || recordFunctionEndCallback_) arm();
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
  complete_future();
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

void RingWork::complete_future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard<std::mutex> hold(settle_mutex_);
    over_ = true;
    future = future_;
  }
  if (!future) return;
  if (failure_)
    future->setError(failure_);
  else
    future->markCompleted(c10::IValue(outputs_));
}

c10::intrusive_ptr<c10::ivalue::Future> RingWork::getFuture() {
  bool over;
  {
    const std::lock_guard<std::mutex> hold(settle_mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    over = over_;
  }
  if (over)
    complete_future();
  else
    arm();
  return future_;
}

bool RingWork::isCompleted() {
  if (!std::all_of(requests_.begin(), requests_.end(), [](const RequestPtr& r) { return r->done(); })) return false;
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

float RingWork::getDuration() const {
  int64_t first = INT64_MAX, last = 0;
  for (const RequestPtr& r : requests_) {
    TORCH_CHECK(r->done(), "ringcomm: getDuration() of a call that has not completed");
    first = std::min(first, r->started_ns);
    last = std::max(last, r->ended_ns());
  }
  return requests_.empty() ? 0.f : static_cast<float>(last - first) * 1e-6f;
}

uint64_t RingWork::getSequencenumber() const { return requests_.empty() ? 0 : requests_.back()->call.sequence; }

}  // namespace ringcomm
