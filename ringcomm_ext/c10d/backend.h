// c10d::Backend over a Communicator: checks arguments, lays out buffers, makes requests. No algorithms.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/coalescing.h"
#include "c10d/describe.h"
#include "c10d/launch.h"
#include "c10d/work.h"
#include "engine/group_seed.h"

namespace ringcomm {

class Backend;
class DeviceSide;

// A type of our own, so that Python may copy it (dist.split_group does).
struct BackendOptions final : c10d::Backend::Options {
  using Options::Options;
};

// What a group needs to make another: a store (null: the one it came from), name, this rank's place and all ranks' numbers in the job.
using Found = std::function<c10::intrusive_ptr<Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank, const std::vector<int>& numbers,
    std::chrono::milliseconds timeout)>;

class Backend final : public c10d::Backend {
 public:
  Backend(std::unique_ptr<GroupSeed> seed, CommunicatorPtr group, std::chrono::milliseconds timeout, Found found);
  ~Backend() override;

  const std::string getBackendName() const override { return "ringcomm"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceCoalescedOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::ReduceScatterOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int dst, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int src, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;

  // control.cpp
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  void registerOnCompletionHook(CompletionHook::Function&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override {}  // every request knows when it began and ended
  const char* connection_kind() const { return group_->connection_kind(); }
  // Registered memory: FSDP2's set_allocate_memory_from_process_group_for_comm asks for it here.
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  void setTimeout(std::chrono::milliseconds timeout) override;

  // kin.cpp: groups made from this one
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& opts) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& opts, const int& rank,
                                          const int& size) override;
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
                                           const c10::intrusive_ptr<Options>& opts_override) override;

  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

 private:
  Communicator& group() const;
  int64_t deadline(std::chrono::milliseconds timeout) const;
  Launch prepare(c10d::OpType type, const char* title, std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                 std::chrono::milliseconds timeout, bool async) const;
  c10::intrusive_ptr<c10d::Work> go(Launch&& launch);
  c10::intrusive_ptr<c10d::Work> begin(c10::intrusive_ptr<RingWork> work, std::vector<RequestPtr> requests,
                                       std::function<void()> finalize);
  c10::intrusive_ptr<Backend> found(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
                                    const std::vector<int>& numbers, const c10::intrusive_ptr<Options>& opts) const;
  c10::intrusive_ptr<c10d::Work> issue(Launch&& launch);
  void introduce();
  // on_device.cpp: calls whose tensors are on a device
  c10::intrusive_ptr<c10d::Work> issue_on_device(Launch&& launch, c10::Device device);
  std::shared_ptr<DeviceSide> side_of(c10::Device device);
  std::shared_ptr<DeviceSide> side() const;
  bool devices_leave_later();
  std::exception_ptr close_devices();
  c10::intrusive_ptr<c10d::Work> message(std::vector<at::Tensor>& tensors, int peer, int tag, bool sends);
  void check_root(int64_t root, const char* what) const;

  // Blocks until all ranks have said how many elements they bring; the rest is as asynchronous as any call.
  c10::intrusive_ptr<c10d::Work> sparse_all_reduce(const at::Tensor& tensor, const c10d::AllreduceOptions& opts);
  void add_all_reduce(Launch& l, const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  void add_all_gather(Launch& l, const std::vector<at::Tensor>& outputs, const at::Tensor& input) const;
  void add_all_gather(Launch& l, const at::Tensor& output, const at::Tensor& input) const;
  void add_reduce_scatter(Launch& l, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                          const c10d::ReduceOp& op) const;
  void add_reduce_scatter(Launch& l, const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op) const;

  std::unique_ptr<GroupSeed> seed_;
  CommunicatorPtr group_;
  Found found_;
  c10::intrusive_ptr<Options> options_;
  mutable std::mutex side_mutex_;
  std::shared_ptr<DeviceSide> side_;  // null before the first tensor on a device
  Blocks blocks_;
  std::shared_ptr<CompletionHook> hook_;  // set once, before hooked_
  std::atomic<bool> hooked_{false};
  std::atomic<int64_t> timeout_ms_;
  std::atomic<bool> left_{false}, gone_{false};  // no more calls; and nothing under way either
  std::once_flag introduced_;
  ProfiledGroup profiled_;
  char barrier_byte_[8] = {};
};

}  // namespace ringcomm
