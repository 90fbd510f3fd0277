// TCP connections of one rank in one group: a socket per one-way connection, dialled by its writer at first use. docs/tcp.md.
//
// Towards ranks that have no addresses there are no connections here; a fan-out reaches the ranks that have. The port, the doorbell and the budget
// must outlive them.
#pragma once

#include <memory>

#include "connections/segment.h"
#include "connections/shm.h"
#include "connections/tcp_port.h"
#include "connections/wire_group.h"
#include "core/connection.h"
#include "core/doorbell.h"

namespace ringcomm {

// Expects the group's topic at the port from here on, until it is destroyed.
std::unique_ptr<Connections> make_tcp_connections(WireGroup group, TcpPort& port, Doorbell& own, MemoryBudget& budget);

}  // namespace ringcomm
