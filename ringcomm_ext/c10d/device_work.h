// torch's handle on a call whose data is on a device. wait() orders the caller's stream behind the call and blocks nobody; only a wait with a timeout of its own blocks the host.
//
// Threads: any.
#pragma once

#include "c10d/device_side.h"
#include "c10d/work.h"

namespace ringcomm {

class DeviceWork final : public CallWork {
 public:
  DeviceWork(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
             CommunicatorPtr group, std::shared_ptr<DeviceSide> side, std::vector<at::Tensor> outputs)
      : CallWork(rank, type, title, inputs),
        group_(std::move(group)),
        side_(std::move(side)),
        outputs_(std::move(outputs)) {}
  // Its calls, at least one, in order.
  void begin(std::vector<DeviceFlightPtr> flights, std::shared_ptr<CompletionHook> hook);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  // Complete as soon as it is there: what is chained to it is ordered behind the call on the device.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Completes when the device is done. Never fails: its value is the WorkResult, as a number.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;  // milliseconds, as the host saw them
  uint64_t getSequencenumber() const override { return last().call.sequence; }

  c10d::WorkResult outcome() const override;
  void span(int64_t& first_ns, int64_t& last_ns) const override;
  std::optional<c10::Stream> stream() const override { return last().stream; }
  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  DeviceFlight& last() const { return *flights_.back(); }
  bool all_over() const;
  void wait_here(int64_t until_ns);

  CommunicatorPtr group_;
  std::shared_ptr<DeviceSide> side_;
  std::vector<at::Tensor> outputs_;
  std::vector<DeviceFlightPtr> flights_;
  std::mutex futures_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_, future_result_;
};

}  // namespace ringcomm
