// Another process (or this one) as the engine knows it: its doorbell, and whether it is still alive. One per process, shared by all groups.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "connections/segment.h"
#include "core/doorbell.h"

namespace ringcomm {

struct PeerProcess {
  std::string key;  // fresh per process
  int pidfd = -1;   // readable when it is gone; owned by the engine's watch
  std::shared_ptr<Segment> doorbell_segment;
  std::shared_ptr<Segment> heap;  // its registered memory, all of it
  std::atomic<bool> dead{false};

  Doorbell& doorbell() const { return *reinterpret_cast<Doorbell*>(doorbell_segment->data()); }
};

}  // namespace ringcomm
