// `spin` mode on the host: the FIFOs of layout.h in memory that ranks import from each other, and one launch of the kernel interpreter for each call. For ranks whose kernels run at
// the same time: each on a GPU of its own, or threads of one process whose blocks fit the GPU all at once.
//
// Kernels look at an abort word and write why they gave up in host memory, so that the host can end them and learn more than their results.
#pragma once

#include <atomic>
#include <memory>

#include "cuda/device_group.h"
#include "cuda/layout.h"
#include "cuda/spin_lists.h"
#include "cuda/spin_programs.h"

namespace ringcomm::cuda {

struct SpinShape {
  DeviceFifoShape fifos;
  unsigned threads = 512;  // of a block; guessed
};

class SpinGroup final : public DeviceGroup {
 public:
  // This rank's segment, zeroed. The runtime has loaded kernel_names() and outlives the group. Null: `error`.
  static std::unique_ptr<SpinGroup> make(DeviceRuntime& runtime, const SpinShape& shape, int rank, Error& error);

  DeviceMode mode() const override { return DeviceMode::spin; }
  const DeviceCard& card() const override { return card_; }
  size_t flag_bytes() const override { return 0; }
  bool connect(const std::vector<DeviceCard>& cards, const std::vector<char*>& flags, Error& error) override;
  int load(const std::vector<int32_t>& table, Error& error) override;
  bool enqueue(const DeviceCall& call, StreamHandle stream, Error& error) override;
  bool look(Error& error) const override;
  bool end(StreamHandle stream, int64_t deadline_ns, Error& error) override;
  void disconnect() override { peers_.clear(); }

 private:
  SpinGroup(DeviceRuntime& runtime, const SpinShape& shape, int rank)
      : runtime_(runtime),
        shape_(shape),
        rank_(rank),
        layout_(shape.fifos),
        programs_(runtime, layout_),
        lists_(runtime) {}
  bool reserve(Error& error);
  bool fits(const DeviceCall& call, int blocks, Error& error) const;
  // The chunks as one range where they are one, as docs/program.md cuts a message; else copied to the list.
  static bool is_range(const std::vector<DeviceChunk>& chunks, size_t element, DeviceChunks& out);

  DeviceRuntime& runtime_;
  const SpinShape shape_;
  const int rank_;
  const DeviceLayout layout_;
  DeviceMemory segment_;
  PinnedMemory control_;  // the abort word, and a Failure for each block
  DeviceCard card_{};
  std::vector<PeerMemory> peers_;
  std::vector<char*> segments_;  // by rank; empty until connected
  SpinPrograms programs_;
  SpinLists lists_;
  std::atomic<bool> over_{false};
};

}  // namespace ringcomm::cuda
