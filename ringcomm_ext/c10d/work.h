// torch's handle on one or several requests of a group. It drives nothing itself: wait() lends the thread to the group.
//
// Threads: wait, isCompleted, getFuture from any thread; the end of a Work that has a Future, a copy-back or an open profiler range is handled on a
// callback thread, never on an engine thread.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "engine/communicator.h"

namespace ringcomm {

class RingWork final : public c10d::Work {
 public:
  RingWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs, CommunicatorPtr group,
           std::vector<at::Tensor> outputs)
      : Work(rank, type, title, inputs), group_(std::move(group)), outputs_(std::move(outputs)) {}

  // `finalize` (may be empty) runs once, after success, before anyone sees the Work complete.
  void begin(std::vector<RequestPtr> requests, std::function<void()> finalize);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  const std::vector<at::Tensor>& outputs() const { return outputs_; }
  void synchronize() override {}
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  void arm();
  void follow(size_t request);
  void settle();
  void complete_future();
  void wait_for(Request& request, int64_t until_ns);

  CommunicatorPtr group_;
  std::vector<at::Tensor> outputs_;
  std::vector<RequestPtr> requests_;
  std::function<void()> finalize_;
  std::mutex settle_mutex_;  // settling and arming; not held while callbacks run
  std::atomic<bool> settled_{false};
  bool armed_ = false, over_ = false;
  std::exception_ptr failure_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace ringcomm
