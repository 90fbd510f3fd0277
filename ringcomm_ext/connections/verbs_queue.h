// A reliable queue pair with its completion queue and the channel that wakes for it: all the verbs of a connection. docs/rdma.md.
//
// Threads: post() any, one at a time for each caller's bookkeeping (the device itself takes several); poll() one at a time; on_wake() the poller.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "connections/verbs_device.h"

namespace ringcomm {

// What a queue pair does with its time, and how its packets look; the job's settings.
struct VerbsTraits {
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  uint16_t pkey_index = 0;
  uint8_t timeout = 18;     // a packet is sent again after 4.096 us * 2^timeout
  uint8_t retry_count = 6;  // so often; 7 means "for ever" to soft RoCE
};

// Where a queue pair is to be found, as it travels (verbs_notes.h).
struct VerbsAddress {
  uint32_t qp = 0, psn = 0;
  uint16_t lid = 0;
  uint8_t mtu = 0;
  uint8_t ethernet = 0;
  ibv::Gid gid{};
};

class VerbsQueue {
 public:
  struct Shape {
    uint32_t sends, receives;  // at most so many posted and not polled
    uint32_t inline_bytes;     // wanted
  };
  // With all its receives posted. Null and `error` on failure. The device must outlive it.
  static std::unique_ptr<VerbsQueue> open(VerbsDevice& device, const Shape& shape, const VerbsTraits& traits,
                                          Error& error);
  ~VerbsQueue();
  VerbsQueue(const VerbsQueue&) = delete;
  VerbsQueue& operator=(const VerbsQueue&) = delete;

  VerbsDevice& device() const { return device_; }
  VerbsAddress address() const;
  uint32_t inline_bytes() const { return inline_bytes_; }
  // Ready to receive and to send. Once.
  bool connect(const VerbsAddress& peer, Error& error);

  // 0, or an errno.
  int post(ibv::SendWr* requests) {
    ibv::SendWr* bad;
    return qp_->context->ops.post_send(qp_, requests, &bad);
  }
  int post_receives(uint32_t count);
  // How many there were, or a negative number.
  int poll(ibv::Wc* completions, int most) { return cq_->context->ops.poll_cq(cq_, most, completions); }

  // Has `woken` called by the poller when there are completions after an arm(); never inside watch(). Once, before the first arm().
  bool watch(std::function<void()> woken);
  // The next completion wakes. Who has armed polls once more: what came before does not wake. Cheap when it is armed already.
  void arm();

 private:
  VerbsQueue(VerbsDevice& device, const VerbsTraits& traits) : device_(device), traits_(traits) {}
  bool start(const Shape& shape, Error& error);
  bool modify(ibv::QpAttr& attr, int mask, const char* to, Error& error);
  bool refuse(const char* what, int number, Error& error) const;
  void on_event();

  VerbsDevice& device_;
  const VerbsTraits traits_;
  ibv::CompChannel* channel_ = nullptr;
  ibv::Cq* cq_ = nullptr;
  ibv::Qp* qp_ = nullptr;
  uint32_t psn_ = 0, inline_bytes_ = 0;
  Watch watch_;
  std::function<void()> woken_;
  std::atomic<bool> armed_{false};
};

}  // namespace ringcomm
