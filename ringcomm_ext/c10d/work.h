// torch's handle on one or several requests of a group. It drives nothing itself: wait() lends the thread to the group.
//
// Threads: wait, isCompleted, getFuture from any thread; the end of a Work that has a Future, a copy-back or an open profiler range is handled on a
// callback thread, never on an engine thread.
#pragma once

#include <c10/core/Stream.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "c10d/completion_hook.h"
#include "engine/communicator.h"

namespace ringcomm {

// What an error becomes at a Work.
std::exception_ptr exception_of(const Error& error);

// A Work of one call, wherever its data is: what blocks of calls need to know of it.
class CallWork : public c10d::Work {
 public:
  using Work::Work;
  // Once it has completed:
  virtual c10d::WorkResult outcome() const = 0;
  // Widens the span by this work's. Throws if it has not completed.
  virtual void span(int64_t& first_ns, int64_t& last_ns) const = 0;
  // The device's stream that its outputs are ready in when its future is complete; none: they are on the CPU.
  virtual std::optional<c10::Stream> stream() const { return std::nullopt; }
};

class RingWork final : public CallWork {
 public:
  RingWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs, CommunicatorPtr group,
           std::vector<at::Tensor> outputs)
      : CallWork(rank, type, title, inputs), group_(std::move(group)), outputs_(std::move(outputs)) {}

  // `finalize` (may be empty) runs once, after success, before anyone sees the Work complete. `hook` (may be null) is told of the end, good or bad.
  void begin(std::vector<RequestPtr> requests, std::function<void()> finalize, std::shared_ptr<CompletionHook> hook);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  const std::vector<at::Tensor>& outputs() const { return outputs_; }
  void synchronize() override {}
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  FuturePtr getFuture() override;
  // Never fails: its value is the WorkResult, as a number.
  FuturePtr getFutureResult() override;
  float getDuration() const override;  // milliseconds
  uint64_t getSequencenumber() const override;

  c10d::WorkResult outcome() const override;
  void span(int64_t& first_ns, int64_t& last_ns) const override;

 private:
  using Complete = void (RingWork::*)(c10::ivalue::Future&) const;
  void arm();
  void follow(size_t request);
  void settle();
  void complete_futures();
  void complete(c10::ivalue::Future& future) const;
  void complete_result(c10::ivalue::Future& future) const;
  FuturePtr future_in(FuturePtr& place, const c10::TypePtr& type, Complete complete);
  std::shared_ptr<c10d::WorkInfo> info() const;
  void wait_for(Request& request, int64_t until_ns);

  CommunicatorPtr group_;
  std::vector<at::Tensor> outputs_;
  std::vector<RequestPtr> requests_;
  std::function<void()> finalize_;
  std::mutex settle_mutex_;  // settling and arming; not held while callbacks run
  std::atomic<bool> settled_{false};
  bool armed_ = false, over_ = false;
  std::exception_ptr failure_;
  FuturePtr future_, future_result_;
  std::shared_ptr<CompletionHook> hook_;
};

}  // namespace ringcomm
