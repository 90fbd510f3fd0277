// Connections over RDMA verbs of one rank in one group: a reliable queue pair per one-way connection, met by a socket that its writer dials at first use.
// docs/rdma.md.
//
// Towards ranks that have no addresses there are no connections here; a fan-out reaches the ranks that have. The net (and its port), the doorbell and the
// budget must outlive them.
#pragma once

#include <memory>

#include "connections/verbs_net.h"
#include "connections/wire_group.h"
#include "core/connection.h"
#include "core/doorbell.h"

namespace ringcomm {

// Expects the group's topic at the net's port from here on, until it is destroyed.
std::unique_ptr<Connections> make_verbs_connections(WireGroup group, VerbsNet& net, Doorbell& own,
                                                    MemoryBudget& budget);

}  // namespace ringcomm
