// Kinds of connections for the tests. A new kind is a World and a line in main() of connection_test.cpp.
#pragma once

#include <memory>
#include <vector>

#include "check.h"
#include "connections/heap.h"
#include "connections/mixed.h"
#include "connections/shm.h"
#include "connections/tcp.h"
#include "connections/verbs.h"
#include "poller.h"
#include "test_verbs.h"

namespace ringcomm::test {

// What a test asks of a world. Capacities in bytes, multiples of 4 KiB.
struct Shape {
  int ranks = 2;
  int channels = 1;
  uint32_t slots = 4;
  size_t fan_out = 4096, pair = 4096, message = 4096;
  size_t memory_limit = size_t{64} << 20;  // per rank
};

// n ranks of one group in this process, connected.
class World {
 public:
  virtual ~World() = default;
  virtual Connections& rank(int r) = 0;
  // Registered memory of a rank that its readers can be lent, or null where the kind lends nothing.
  virtual char* lendable(int r, size_t bytes) = 0;
  // Whether the readers of what this rank lends read it where it lies, or get a copy of it by the wire.
  virtual bool reads_in_place(int /*writer*/, int /*reader*/) const { return true; }
};

struct Kind {
  const char* name;
  std::unique_ptr<World> (*make)(const Shape& shape);
};

// What the ranks of shared memory need; ranks of different nodes get no segments of each other.
class ShmRanks {
 public:
  ShmRanks(const Shape& s, const ShmLayout& layout) {
    for (int r = 0; r < s.ranks; ++r) {
      Error error;
      budgets_.push_back(std::make_unique<MemoryBudget>(s.memory_limit));
      bells_.push_back(std::make_unique<Doorbell>());
      heaps_.push_back(Heap::create(size_t{64} << 20, error));
      CHECK(heaps_.back() != nullptr);
      peers_.push_back({Segment::create(layout.bytes(), error), bells_.back().get(), heaps_.back()->segment()});
      CHECK(peers_.back().segment != nullptr);
      CHECK(peers_.back().segment->commit(0, layout.header_bytes(), budget(r), "the control lines of a test", error));
    }
  }
  MemoryBudget& budget(int r) { return *budgets_[r]; }
  const std::vector<ShmPeer>& peers() const { return peers_; }
  char* allocate(int r, size_t bytes) {
    Error error;
    char* data = heaps_[r]->allocate(bytes, error);
    if (data == nullptr) fail("registered memory", r, error.text);
    return data;
  }

 private:
  std::vector<std::unique_ptr<MemoryBudget>> budgets_;  // outlive the segments, which give back to them
  std::vector<std::unique_ptr<Doorbell>> bells_;
  std::vector<std::shared_ptr<Heap>> heaps_;
  std::vector<ShmPeer> peers_;
};

inline ShmLayout layout_of(const Shape& s) { return {s.ranks, s.channels, s.slots, s.fan_out, s.pair, s.message}; }

class ShmWorld final : public World {
 public:
  explicit ShmWorld(const Shape& s) : ranks_(s, layout_of(s)) {
    for (int r = 0; r < s.ranks; ++r)
      connections_.push_back(make_shm_connections(layout_of(s), r, ranks_.peers(), ranks_.budget(r)));
  }
  Connections& rank(int r) override { return *connections_[r]; }
  char* lendable(int r, size_t bytes) override { return ranks_.allocate(r, bytes); }

 private:
  ShmRanks ranks_;
  std::vector<std::unique_ptr<Connections>> connections_;
};

enum class Wire { tcp, verbs };

// A port per rank on the loopback, one poller for all. With shared memory inside (mixed): two nodes, ranks by turns.
class WireWorld final : public World {
 public:
  WireWorld(const Shape& s, Wire wire, bool mixed) : wire_(wire), mixed_(mixed), ranks_(s, layout_of(s)) {
    std::vector<std::string> addresses;
    for (int r = 0; r < s.ranks; ++r) {
      Error error;
      TcpOptions options;
      options.bind = {"127.0.0.1"};
      options.key = "the key of a test";
      ports_.push_back(TcpPort::open(poller_.loop(), options, error));
      if (!ports_.back()) fail("a port", r, error.text);
      addresses.push_back("127.0.0.1:" + std::to_string(ports_.back()->port()));
      if (wire == Wire::verbs) nets_.push_back(open_test_net(*ports_.back(), r));
    }
    const Nonce topic = fresh_nonce();
    for (int r = 0; r < s.ranks; ++r) {
      WireGroup group;
      group.rank = r, group.topic = topic, group.layout = layout_of(s);
      std::vector<ShmPeer> peers = ranks_.peers();
      for (int p = 0; p < s.ranks; ++p) {
        group.peers.emplace_back();
        if (p == r || same_node(p, r)) continue;
        group.peers.back() = {addresses[p]};
        peers[p] = {};
      }
      Doorbell& own = *ranks_.peers()[r].doorbell;
      auto far = wire == Wire::tcp ? make_tcp_connections(group, *ports_[r], own, ranks_.budget(r))
                                   : make_verbs_connections(group, *nets_[r], own, ranks_.budget(r));
      connections_.push_back(mixed ? make_mixed_connections(layout_of(s), r, peers, ranks_.budget(r), std::move(far))
                                   : std::move(far));
    }
  }
  Connections& rank(int r) override { return *connections_[r]; }
  char* lendable(int r, size_t bytes) override { return wire_ == Wire::tcp ? ranks_.allocate(r, bytes) : nullptr; }
  bool reads_in_place(int writer, int reader) const override { return same_node(writer, reader); }

 private:
  bool same_node(int a, int b) const { return mixed_ && a % 2 == b % 2; }

  const Wire wire_;
  const bool mixed_;
  ShmRanks ranks_;
  Poller poller_;
  std::vector<std::unique_ptr<TcpPort>> ports_;
  std::vector<std::unique_ptr<VerbsNet>> nets_;
  std::vector<std::unique_ptr<Connections>> connections_;
};

inline constexpr Kind kShm{"shm",
                           [](const Shape& s) -> std::unique_ptr<World> { return std::make_unique<ShmWorld>(s); }};
template <Wire wire, bool mixed>
std::unique_ptr<World> make_wire_world(const Shape& s) {
  return std::make_unique<WireWorld>(s, wire, mixed);
}
inline constexpr Kind kTcp{"tcp", make_wire_world<Wire::tcp, false>};
inline constexpr Kind kMixed{"shm+tcp", make_wire_world<Wire::tcp, true>};
inline constexpr Kind kVerbs{"verbs", make_wire_world<Wire::verbs, false>};
inline constexpr Kind kMixedVerbs{"shm+verbs", make_wire_world<Wire::verbs, true>};

}  // namespace ringcomm::test
