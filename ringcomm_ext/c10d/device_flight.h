// One call under way on a device: shared by torch's Work, its group's side and the watch.
//
// Threads: any, after it was shared. `begun` is recorded before that, `end` by the thread that issues the call, which then says so; both are only asked and waited for afterwards.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/board.h"

namespace ringcomm {

using DeviceEventPtr = std::shared_ptr<c10::Event>;

class DeviceFlight {
 public:
  // `begun`: null for a call that is captured.
  DeviceFlight(const Fingerprint& call, c10::Stream issuer, c10::Stream stream, DeviceEventPtr begun,
               int64_t deadline_ns)
      : call(call),
        issuer(issuer),
        stream(stream),
        begun(std::move(begun)),
        deadline_ns(deadline_ns),
        started_ns(now_ns()),
        end(stream.device_type()) {}

  const Fingerprint call;
  const c10::Stream issuer;    // the caller's current one
  const c10::Stream stream;    // where the call is
  const DeviceEventPtr begun;  // behind what its input waits for
  const int64_t deadline_ns, started_ns;
  c10::Event end;

  // Into a graph: over for the host at once; its tensors stay as long as it.
  bool captured() const { return !begun; }
  // Nothing more is put into the stream for it; `recorded`: and its end is there.
  void issued(bool recorded) { issued_.store(recorded ? Issued::wholly : Issued::partly, std::memory_order_release); }
  bool being_issued() const { return issued_.load(std::memory_order_acquire) == Issued::no; }
  // The stream has passed its end, for whatever reason.
  bool passed() const { return issued_.load(std::memory_order_acquire) == Issued::wholly && end.query(); }

  // Over for the host: it has ended and this was noticed, or it has failed.
  bool over() const { return over_.load(std::memory_order_acquire); }
  int64_t ended_ns() const { return ended_ns_; }  // once over
  // Null while all is well.
  std::exception_ptr failure() const {
    const std::lock_guard<std::mutex> hold(mutex_);
    return failure_;
  }
  Cause cause() const {
    const std::lock_guard<std::mutex> hold(mutex_);
    return cause_;
  }

  // Tensors that the device may still use.
  void stash(std::vector<at::Tensor> tensors) {
    const std::lock_guard<std::mutex> hold(mutex_);
    stash_ = std::move(tensors);
  }
  // Dropped outside of the lock: it may take Python's.
  void unstash() {
    std::vector<at::Tensor> gone;
    const std::lock_guard<std::mutex> hold(mutex_);
    gone.swap(stash_);
    // `gone` is destroyed after `hold` (declared before it).
  }
  // Of a device that no longer says what it uses: nobody gets the memory again.
  void keep_for_ever() {
    const std::lock_guard<std::mutex> hold(mutex_);
    (void)new std::vector<at::Tensor>(std::move(stash_));
    stash_.clear();
  }

  // Runs when it is over, or at once; on whatever thread learns of it.
  void then(std::function<void()> callback) {
    {
      const std::lock_guard<std::mutex> hold(mutex_);
      if (!over()) return then_.push_back(std::move(callback));
    }
    callback();
  }
  // The first one counts. Of a failure the tensors stay: the device may still use them.
  void finish(std::exception_ptr failure, Cause cause) {
    std::vector<std::function<void()>> callbacks;
    const bool good = !failure;
    {
      const std::lock_guard<std::mutex> hold(mutex_);
      if (over()) return;
      failure_ = std::move(failure), cause_ = cause;
      ended_ns_ = now_ns();
      callbacks.swap(then_);
      over_.store(true, std::memory_order_release);
    }
    if (good && !captured()) unstash();
    for (const auto& callback : callbacks) callback();
  }

 private:
  enum class Issued { no, partly, wholly };
  std::atomic<Issued> issued_{Issued::no};
  mutable std::mutex mutex_;
  std::vector<at::Tensor> stash_;
  std::vector<std::function<void()>> then_;
  std::exception_ptr failure_;
  Cause cause_ = Cause::none;
  int64_t ended_ns_ = 0;
  std::atomic<bool> over_{false};
};
using DeviceFlightPtr = std::shared_ptr<DeviceFlight>;

}  // namespace ringcomm
