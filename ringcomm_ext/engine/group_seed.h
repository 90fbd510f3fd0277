// A group before its peers are known: what this rank offers (its segment), and how the others become a Communicator.
//
// Order: seed on every rank -> cards exchanged through the store (Python) -> connect(). The seed is registered before its card is published, so
// a peer that asks early is answered; nothing has to wait or be parked.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/communicator.h"

namespace ringcomm {

// What a rank publishes about itself, as the store carries it.
struct PeerCard {
  std::string socket;   // address of its process's local socket
  std::string nonce;    // of the offer, hex; rank 0's is the group's topic too
  std::string process;  // key of its process
  std::string host;
  int pid = 0;
  int global_rank = -1;
  int node = 0;  // equal numbers: they share memory
  std::vector<std::string>
      addresses;  // of its process's TCP port, as this rank should try them; unused on the own node
  int rails = 1;  // WireGroup::rails
};

class GroupSeed {
 public:
  // Null and `error` on failure.
  static std::unique_ptr<GroupSeed> make(Engine& engine, int rank, const ShmLayout& layout, Error& error);
  ~GroupSeed();  // withdraws the offer

  PeerCard card() const;
  int rank() const { return rank_; }
  const ShmLayout& layout() const { return layout_; }
  // Opens the segments of the peers on this node and the control sockets to the others, and returns when every rank has done so: a rank that sends and
  // exits at once must not be gone before others have its segment. Blocks up to the deadline. `spec` comes with everything but peers, board and layout.
  CommunicatorPtr connect(GroupSpec spec, const std::vector<PeerCard>& cards, int64_t deadline_ns, Error& error);

 private:
  GroupSeed(Engine& engine, int rank, const ShmLayout& layout)
      : engine_(engine), rank_(rank), layout_(layout), nonce_(fresh_nonce()) {}
  bool open_node(const std::vector<PeerCard>& cards, int64_t deadline_ns, GroupSpec& spec, Error& error);
  bool open_peer(const PeerCard& card, int peer, int leader, int64_t deadline_ns, GroupSpec& spec, Error& error);
  bool open_links(const std::vector<PeerCard>& cards, int64_t deadline_ns, GroupSpec& spec, Error& error);
  bool make_control(const std::vector<PeerCard>& cards, GroupSpec& spec, Error& error);
  bool all_connected(GroupSpec& spec, int64_t deadline_ns, Error& error);

  Engine& engine_;
  const int rank_;
  const ShmLayout layout_;
  const Nonce nonce_;
  std::shared_ptr<Segment> segment_;
};

}  // namespace ringcomm
