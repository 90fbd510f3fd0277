// `memop` mode as a group: the enqueuing interpreter over slots that ranks import from each other and flags in host pages that all of them register. For ranks that share a GPU, and wherever no kernel may spin.
//
// Slots carry no tags and no kernel waits, so nothing on the device finds a failure: `look` never does; who waits too long must be ended. After that streams do not wait for each other:
// slots, and the outputs of the calls that were under way, hold rubbish; nothing else is written.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "cuda/device_group.h"
#include "cuda/enqueuer.h"

namespace ringcomm::cuda {

class MemopGroup final : public DeviceGroup {
 public:
  // This rank's slots, zeroed. The runtime has loaded kernel_names() and outlives the group. Null: `error`.
  static std::unique_ptr<MemopGroup> make(DeviceRuntime& runtime, const EnqueuerShape& shape, int rank, Error& error);

  DeviceMode mode() const override { return DeviceMode::memop; }
  const DeviceCard& card() const override { return card_; }
  size_t flag_bytes() const override;
  bool connect(const std::vector<DeviceCard>& cards, const std::vector<char*>& flags, Error& error) override;
  int load(const std::vector<int32_t>& table, Error& error) override;
  bool enqueue(const DeviceCall& call, StreamHandle stream, Error& error) override;
  bool look(Error&) const override { return false; }
  bool end(StreamHandle stream, int64_t deadline_ns, Error& error) override;
  void disconnect() override;

 private:
  MemopGroup(DeviceRuntime& runtime, const EnqueuerShape& shape, int rank)
      : runtime_(runtime), layout_(shape), rank_(rank) {}

  struct Loaded {
    Program program;
    size_t largest_piece;  // bytes
  };
  DeviceRuntime& runtime_;
  const EnqueuerLayout layout_;
  const int rank_;
  DeviceMemory segment_;
  DeviceCard card_{};
  std::vector<PeerMemory> peers_;
  std::vector<RegisteredMemory> flags_;
  char* own_flags_ = nullptr;  // the host's
  std::unique_ptr<Enqueuer> enqueuer_;
  std::map<std::vector<int32_t>, int> numbers_;
  std::vector<std::unique_ptr<Loaded>> programs_;
  std::atomic<bool> over_{false};
};

}  // namespace ringcomm::cuda
