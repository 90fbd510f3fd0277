// Connections of a group that spans nodes: shared memory towards the peers of this node, a wire (TCP, verbs) towards the others. A fan-out is the node's, with
// its slots and tails, and the wire's to the readers elsewhere, behind one Sender.
#pragma once

#include <memory>
#include <vector>

#include "connections/shm.h"

namespace ringcomm {

// `peers[rank]`: a segment where the rank is of this node (this rank's own too), else none; then `wire` reaches it. Both parts are of one layout.
std::unique_ptr<Connections> make_mixed_connections(const ShmLayout& layout, int rank, std::vector<ShmPeer> peers,
                                                    MemoryBudget& budget, std::unique_ptr<Connections> wire);

}  // namespace ringcomm
