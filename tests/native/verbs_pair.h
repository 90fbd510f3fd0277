// Two ranks over verbs for the tests, each with its own poller, port, net and doorbell.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "connections/verbs.h"
#include "poller.h"
#include "test_verbs.h"
#include "wire_promises.h"

namespace ringcomm::test {

struct PairOptions {
  size_t capacity = 4096;
  int64_t grace = 200 * kMs;
  size_t memory[2] = {size_t{256} << 20, size_t{256} << 20};
  int channels = 1;
  uint32_t slots = 4;
  bool two_rails = false;  // channel 1 by the other device
};

class VerbsPair {
 public:
  explicit VerbsPair(const PairOptions& o = {}) {
    const Nonce topic = fresh_nonce();
    for (int r = 0; r < 2; ++r) {
      Side& s = sides_[r];
      Error error;
      TcpOptions options;
      options.bind = {"127.0.0.1"};
      options.key = "a key";
      s.budget = std::make_unique<MemoryBudget>(o.memory[r]);
      s.port = TcpPort::open(s.poller.loop(), options, error);
      CHECK(s.port != nullptr);
      VerbsOptions verbs = test_options(r);
      if (o.two_rails) verbs.rails.push_back(test_options(1 - r).rails.front());
      s.net = VerbsNet::open(test_library(), *s.port, verbs, error);
      if (!s.net) fail("a net", r, error.text);
    }
    for (int r = 0; r < 2; ++r) {
      WireGroup group;
      group.rank = r, group.topic = topic, group.grace_ns = o.grace;
      group.layout = {2, o.channels, o.slots, o.capacity, o.capacity, o.capacity};
      group.peers.resize(2);
      group.peers[1 - r] = {address(1 - r)};
      sides_[r].connections = make_verbs_connections(group, *sides_[r].net, sides_[r].bell, *sides_[r].budget);
    }
  }
  std::string address(int r) const { return "127.0.0.1:" + std::to_string(sides_[r].port->port()); }
  Doorbell& bell(int r) { return sides_[r].bell; }
  TcpPort& port(int r) { return *sides_[r].port; }
  VerbsNet& net(int r) { return *sides_[r].net; }
  Sender& sender(int r, int channel = 0) {
    return *sides_[r].connections->sender(ConnectionKind::pair, channel, 1 - r);
  }
  Receiver& receiver(int r, int channel = 0) {
    return *sides_[r].connections->receiver(ConnectionKind::pair, channel, 1 - r);
  }
  void leave(int r) { sides_[r].connections.reset(); }
  void stop(int r) { sides_[r].poller.stop(); }

 private:
  struct Side {
    Doorbell bell{};
    std::unique_ptr<MemoryBudget> budget;
    Poller poller;
    std::unique_ptr<TcpPort> port;
    std::unique_ptr<VerbsNet> net;
    std::unique_ptr<Connections> connections;
  };
  Side sides_[2];
};

// The error that writing to a rank ends in.
inline Error sending_fails(VerbsPair& two, int rank, size_t bytes) {
  Sender& to = two.sender(rank);
  uint32_t k = 1000;
  await("an error of the sender", [&] {
    if (to.reserve(bytes)) to.publish(++k);
    return to.error() != nullptr;
  });
  CHECK(to.reserve(8) == nullptr);
  return *to.error();
}

inline Error receiving_fails(VerbsPair& two, int rank, size_t bytes) {
  Receiver& from = two.receiver(rank);
  uint32_t tag;
  await("an error of the receiver", [&] {
    CHECK(from.peek(bytes, &tag) == nullptr);
    return from.error() != nullptr;
  });
  return *from.error();
}

}  // namespace ringcomm::test
