// Another process (or this one) as the engine knows it: how to reach it, and whether it is still alive. One per process, shared by all groups.
//
// On this node that is a doorbell, a pidfd and its registered memory; on another it is a control socket and nothing else: there is nobody to ring,
// for what goes there by wire wakes its reader itself.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "connections/segment.h"
#include "core/doorbell.h"
#include "engine/control_link.h"

namespace ringcomm {

struct PeerProcess {
  std::string key;  // fresh per process
  int pidfd = -1;   // readable when it is gone; owned by the engine's watch
  std::shared_ptr<Segment> doorbell_segment;
  std::shared_ptr<Segment> heap;      // its registered memory, all of it
  std::shared_ptr<ControlLink> link;  // of a process on another node
  std::atomic<bool> dead{false};
  std::atomic<bool> cut{false};  // with dead: not that it ended, but that its host has fallen silent

  bool remote() const { return link != nullptr; }
  Doorbell& doorbell() const { return *reinterpret_cast<Doorbell*>(doorbell_segment->data()); }
  void ring() const {
    if (doorbell_segment) doorbell().ring();
  }
  void ring_always() const {
    if (doorbell_segment) doorbell().ring_always();
  }
};

}  // namespace ringcomm
