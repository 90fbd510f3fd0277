// TCP connections of one rank in one group: a socket per one-way connection, dialled by its writer at first use. docs/tcp.md.
//
// Towards ranks that have no addresses there are no connections here; a fan-out reaches the ranks that have. The port, the doorbell and the budget
// must outlive them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "connections/segment.h"
#include "connections/shm.h"
#include "connections/tcp_port.h"
#include "core/connection.h"
#include "core/doorbell.h"

namespace ringcomm {

struct TcpGroup {
  int rank = 0;
  Nonce topic{};     // the group's, the same on all its ranks
  ShmLayout layout;  // ranks, channels, slots, capacities
  std::vector<std::vector<std::string>>
      peers;  // by rank: addresses to dial, best first; empty: not over TCP (this rank's own too)
  std::vector<int>
      rails;  // by rank, none: 1 each; so many addresses, the first, are equally good: channel c begins with number c of them
  // For a connection to come about. Long: a refusal is known at once, a dead or cut-off peer by the control plane, and one that is only stopped may go on.
  int64_t dial_ns = 3600'000'000'000;
  // After a socket broke: the death of a peer arrives by the control socket and gives the better reason, so error() waits for it.
  int64_t grace_ns = 3'000'000'000;
};

// Expects the group's topic at the port from here on, until it is destroyed.
std::unique_ptr<Connections> make_tcp_connections(TcpGroup group, TcpPort& port, Doorbell& own, MemoryBudget& budget);

}  // namespace ringcomm
