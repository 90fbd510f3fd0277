// What the connections of a group between nodes need to know of it, whatever wire carries them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "connections/shm.h"
#include "connections/tcp_port.h"

namespace ringcomm {

struct WireGroup {
  int rank = 0;
  Nonce topic{};     // the group's, the same on all its ranks
  ShmLayout layout;  // ranks, channels, slots, capacities
  std::vector<std::vector<std::string>>
      peers;  // by rank: addresses to dial, best first; empty: not over the wire (this rank's own too)
  std::vector<int>
      rails;  // by rank, none: 1 each; so many addresses, the first, are equally good: TCP's channel c begins with number c of them
  // For a connection to come about. Long: a refusal is known at once, a dead or cut-off peer by the control plane, and one that is only stopped may go on.
  int64_t dial_ns = 3600'000'000'000;
  // After a connection broke: the death of a peer arrives by the control socket and gives the better reason, so error() waits for it.
  int64_t grace_ns = 3'000'000'000;

  std::vector<int> numbers;  // by rank: its number in the job, for errors; none: the same
  int shown(int other) const { return numbers.empty() ? other : numbers[static_cast<size_t>(other)]; }
  bool reaches(int other) const { return !peers[static_cast<size_t>(other)].empty(); }
};

}  // namespace ringcomm
