// Shared-memory connections of one rank in one group: one segment per rank holds everything this rank writes to others.
//
//   | fan-out header | pair headers | message headers |  (per channel, packed: a page or two, all that tiny messages ever touch)
//   | fan-out slots | pair slots ... | message slots ... |  (address space until the first message over 56 bytes goes that way)
//   | board |  (whole pages at the end, for the engine; pages are taken in the segment of a node's leader only)
//
// Every rank of the group computes the same layout from (ranks, slots, capacities, channels).
#pragma once

#include <memory>
#include <vector>

#include "connections/segment.h"
#include "core/connection.h"
#include "core/doorbell.h"
#include "core/fifo.h"

namespace ringcomm {

struct ShmLayout {
  int ranks = 1;
  int channels = 1;
  uint32_t slots = 4;
  size_t fan_out_capacity = 0, pair_capacity = 0, message_capacity = 0;  // bytes of one slot; multiples of 4 KiB
  size_t board_bytes = 0;

  FifoShape fan_out() const { return {slots, fan_out_capacity, static_cast<uint32_t>(ranks > 1 ? ranks - 1 : 1)}; }
  FifoShape pair() const { return {slots, pair_capacity, 1}; }
  FifoShape message() const { return {slots, message_capacity, 1}; }

  struct Place {
    size_t header, payload;  // offsets in the writer's segment
  };
  // `peer` is the reader's rank as the writer counts it.
  Place fan_out_at(int channel) const;
  Place pair_at(int channel, int peer) const;
  Place message_at(int peer) const;
  size_t header_bytes() const;
  size_t board_at() const;
  size_t bytes() const;
};

// A rank's peer on the node: its segment, and how to wake its process.
struct ShmPeer {
  std::shared_ptr<Segment> segment;
  Doorbell* doorbell = nullptr;
  std::shared_ptr<Segment> heap = nullptr;  // its process's registered memory, if it has any
};

// `peers[rank]` is this rank's own. Ranks without a segment are of another node: they have no part in a fan-out here, and nobody asks for a connection with
// them. The layout holds a place for them all the same, so that it does not depend on who is where.
std::unique_ptr<Connections> make_shm_connections(const ShmLayout& layout, int rank, std::vector<ShmPeer> peers,
                                                  MemoryBudget& budget);

}  // namespace ringcomm
