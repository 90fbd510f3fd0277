// Kinds of connections for the tests. A new kind is a World and a line in main() of connection_test.cpp.
#pragma once

#include <memory>
#include <vector>

#include "check.h"
#include "connections/heap.h"
#include "connections/shm.h"

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
};

struct Kind {
  const char* name;
  std::unique_ptr<World> (*make)(const Shape& shape);
};

class ShmWorld final : public World {
 public:
  explicit ShmWorld(const Shape& s) {
    const ShmLayout layout{s.ranks, s.channels, s.slots, s.fan_out, s.pair, s.message};
    std::vector<ShmPeer> peers;
    for (int r = 0; r < s.ranks; ++r) {
      Error error;
      budgets_.push_back(std::make_unique<MemoryBudget>(s.memory_limit));
      bells_.push_back(std::make_unique<Doorbell>());
      heaps_.push_back(Heap::create(size_t{64} << 20, error));
      CHECK(heaps_.back() != nullptr);
      peers.push_back({Segment::create(layout.bytes(), error), bells_.back().get(), heaps_.back()->segment()});
      CHECK(peers.back().segment != nullptr);
      CHECK(peers.back().segment->commit(0, layout.header_bytes(), *budgets_.back(), "the control lines of a test",
                                         error));
    }
    for (int r = 0; r < s.ranks; ++r) connections_.push_back(make_shm_connections(layout, r, peers, *budgets_[r]));
  }
  Connections& rank(int r) override { return *connections_[r]; }
  char* lendable(int r, size_t bytes) override {
    Error error;
    char* data = heaps_[r]->allocate(bytes, error);
    if (data == nullptr) fail("registered memory", r, error.text);
    return data;
  }

 private:
  std::vector<std::unique_ptr<MemoryBudget>> budgets_;  // outlive the segments, which give back to them
  std::vector<std::unique_ptr<Doorbell>> bells_;
  std::vector<std::shared_ptr<Heap>> heaps_;
  std::vector<std::unique_ptr<Connections>> connections_;
};

inline constexpr Kind kShm{"shm",
                           [](const Shape& s) -> std::unique_ptr<World> { return std::make_unique<ShmWorld>(s); }};

}  // namespace ringcomm::test
