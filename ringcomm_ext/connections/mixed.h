// Connections of a group that spans nodes: shared memory towards the peers of this node, TCP towards the others. A fan-out is the node's, with its
// slots and tails, and a socket per reader elsewhere, behind one Sender.
#pragma once

#include <memory>
#include <vector>

#include "connections/shm.h"
#include "connections/tcp.h"

namespace ringcomm {

// `peers[rank]`: a segment where the rank is of this node (this rank's own too), else none; then group.peers[rank] has addresses.
std::unique_ptr<Connections> make_mixed_connections(TcpGroup group, std::vector<ShmPeer> peers, TcpPort& port,
                                                    MemoryBudget& budget);

}  // namespace ringcomm
