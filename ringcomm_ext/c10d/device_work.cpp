#include "c10d/device_work.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <time.h>

#include <algorithm>

#include "c10d/signals.h"
#include "engine/process.h"

namespace ringcomm {
namespace {

constexpr int64_t kFirstNapNs = 20'000, kLongestNapNs = 1'000'000;  // guessed
constexpr int64_t kAskNs = 200'000'000;                             // between looks at Ctrl-C

}  // namespace

void DeviceWork::begin(std::vector<DeviceFlightPtr> flights, std::shared_ptr<CompletionHook> hook) {
  flights_ = std::move(flights);
  if (recordFunctionEndCallback_) {  // the profiler's range is the host's part
    recordFunctionEndCallback_();
    recordFunctionEndCallback_ = nullptr;
  }
  if (!hook) return;
  hook->expect_one();
  const auto self = c10::intrusive_ptr<DeviceWork>::unsafe_reclaim_from_nonowning(this);
  flights_.back()->then([self, hook] {
    int64_t first = INT64_MAX, last = 0;
    self->span(first, last);
    const auto at = [](int64_t ns) { return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns)); };
    const std::chrono::duration<float> took(static_cast<float>(last - first) * 1e-9f);
    hook->ended(std::make_shared<c10d::WorkInfo>(self->opType_, self->getSequencenumber(), at(first), at(last), took));
  });
}

// Calls of a group end in their order, so only when the last one is over the others are asked, too: each may have been spoiled by itself.
bool DeviceWork::all_over() const {
  if (!side_->over(last())) return false;
  for (const DeviceFlightPtr& f : flights_) (void)side_->over(*f);
  return true;
}

bool DeviceWork::isCompleted() { return all_over(); }

bool DeviceWork::isSuccess() const { return all_over() && !exception(); }

std::exception_ptr DeviceWork::exception() const {
  (void)all_over();
  for (const DeviceFlightPtr& f : flights_)
    if (const std::exception_ptr failure = f->failure()) return failure;
  return nullptr;
}

void DeviceWork::synchronize() {
  const c10::impl::VirtualGuardImpl guard(last().stream.device_type());
  const c10::Stream current = guard.getStream(last().stream.device());
  if (current == last().stream) return;  // it is in order already
  last().end.block(current);
  // What the caller frees from here on is used again behind the call, if by the stream that had it before.
  for (const DeviceFlightPtr& f : flights_)
    if (f->issuer == current) f->unstash();
}

void DeviceWork::wait_here(int64_t until_ns) {
  std::exception_ptr raised;
  int64_t nap_ns = kFirstNapNs, asked = now_ns();
  while (!all_over()) {
    const int64_t now = now_ns();
    TORCH_CHECK_WITH(DistBackendError, now < until_ns, "ringcomm: Timed out after ",
                     (now - last().started_ns) / 1000000, " ms in Work.wait(timeout) for ",
                     name(last().call.collective), " of group '", group_->spec().name, "' on ", last().stream.device(),
                     " (the call itself goes on)");
    if (now - asked > kAskNs && signals_raise(raised)) std::rethrow_exception(raised);
    if (now - asked > kAskNs) asked = now;
    const timespec nap{0, nap_ns};
    nanosleep(&nap, nullptr);
    nap_ns = std::min(2 * nap_ns, kLongestNapNs);
  }
}

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  TORCH_CHECK(!forked(), "ringcomm: this call of group '", group_->spec().name,
              "' belongs to the process that made it; this is a child forked since");
  if (timeout.count() > 0) wait_here(after_ms(timeout.count()));
  if (const std::exception_ptr failure = exception()) std::rethrow_exception(failure);
  synchronize();
  return true;
}

void DeviceWork::abort() {
  if (!forked()) group_->abort("Work.abort() was called");
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  const std::lock_guard<std::mutex> hold(futures_mutex_);
  if (future_) return future_;
  const c10::Device device = last().stream.device();
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{device});
  const std::exception_ptr failure = exception();
  if (failure) {
    future_->setError(failure);
  } else {
    const c10::StreamGuard on(last().stream);  // the future stands for what is enqueued there
    future_->markCompleted(c10::IValue(outputs_));
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFutureResult() {
  {
    const std::lock_guard<std::mutex> hold(futures_mutex_);
    if (future_result_) return future_result_;
    future_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  }
  const auto self = c10::intrusive_ptr<DeviceWork>::unsafe_reclaim_from_nonowning(this);
  const auto complete = [self, future = future_result_] {
    future->markCompleted(c10::IValue(static_cast<int64_t>(self->outcome())));
  };
  flights_.back()->then([complete] {
    Engine* engine = process_engine();  // what is chained to it may wait, which the watch must not
    return engine ? engine->callbacks().run(complete) : complete();
  });
  return future_result_;
}

c10d::WorkResult DeviceWork::outcome() const {
  for (const DeviceFlightPtr& f : flights_)
    if (f->failure()) return f->cause() == Cause::timeout ? c10d::WorkResult::TIMEOUT : c10d::WorkResult::COMM_ERROR;
  return c10d::WorkResult::SUCCESS;
}

void DeviceWork::span(int64_t& first_ns, int64_t& last_ns) const {
  for (const DeviceFlightPtr& f : flights_) {
    TORCH_CHECK(side_->over(*f), "ringcomm: getDuration() of a call that has not completed");
    first_ns = std::min(first_ns, f->started_ns);
    last_ns = std::max(last_ns, f->ended_ns());
  }
}

float DeviceWork::getDuration() const {
  int64_t first = INT64_MAX, last = 0;
  span(first, last);
  return static_cast<float>(last - first) * 1e-6f;
}

}  // namespace ringcomm
