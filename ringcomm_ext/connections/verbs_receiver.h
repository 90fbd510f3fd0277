// A Receiver over verbs: lines and slots that its writer's device writes into, and the counts it owes. docs/rdma.md.
//
// Threads: the receiver's (the holder of its lane); the poller meets the writer, takes memory for slots, rings the doorbell, and sends counts that are late.
// Who polls or counts has the turn.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "connections/late_counts.h"
#include "connections/verbs_peer.h"
#include "core/connection.h"

namespace ringcomm {

class VerbsReceiver final : public Receiver, public OwesCounts, public VerbsEnd {
 public:
  VerbsReceiver(std::shared_ptr<VerbsShared> shared, LateCounts& late, size_t capacity, int channel, int peer);
  ~VerbsReceiver() override;

  // The writer's socket, which becomes this object's. Once; the poller.
  bool attach(int fd);
  bool count_late() override;
  bool told() override { return over(); }
  bool over() override;

  const char* peek(size_t bytes, uint32_t* tag) override;
  void release() override;
  void flush() override;
  size_t capacity() const override { return capacity_; }
  int peer() const override { return other_.rank(); }
  const Error* error() const override { return error_ ? &error_ : nullptr; }

 private:
  void on_note();
  bool heed(const Note& note);
  bool meet(const Note& offer, Error& error);
  bool give_slots();
  bool arrived();
  bool makes_sense();
  const char* payload() const;
  bool poll();
  void poll_in_turn();
  void send_count();
  bool failed();

  const std::shared_ptr<VerbsShared> shared_;
  LateCounts& late_;
  VerbsDevice& device_;
  const size_t capacity_;
  const uint32_t slots_, window_;

  // The poller's: how the two ends met.
  VerbsPeer other_;  // the writer
  VerbsMemory lines_, payloads_;

  std::unique_ptr<VerbsQueue> queue_;  // written before ready_; gone before the memory that it writes
  std::atomic<bool> ready_{false}, has_slots_{false}, closed_{false};

  std::atomic<bool> polling_{false};
  std::vector<uint32_t> lengths_;     // by line; written before arrived_
  std::atomic<uint64_t> arrived_{0};  // messages
  uint64_t released_ = 0, payloads_released_ = 0;
  bool shown_ = false;      // the next message has been peeked
  uint32_t tag_ = 0;        // its
  bool must_tell_ = false;  // of a message released since the last count: it held a slot, or the writer asked

  std::atomic<uint64_t> flushed_{0}, counted_{0};
  uint64_t seen_late_ = 0;  // the poller's
  std::atomic<bool> counting_{false};
  std::atomic<uint64_t> counts_posted_{0}, counts_through_{0};

  Error error_;
};

}  // namespace ringcomm
