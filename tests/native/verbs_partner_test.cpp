// One end of a conversation over verbs whose other end may be somebody else's: tests/rdma/pyverbs_peer.py, written from docs/rdma.md.
//   verbs_partner_test                 both ends are ours
//   verbs_partner_test 10.77.0.2:4711  rank 0, whose rank 1 listens there; prints `port N`, its own
#include <cstring>

#include "verbs_pair.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr size_t kSizes[] = {0, 8, 56, 57, 4096, 20000, 64 << 10};
constexpr uint64_t kMessages = 70;

class Partner {
 public:
  explicit Partner(int rank) : rank_(rank) {
    Error error;
    TcpOptions options;
    options.key = "the key of two partners";
    port_ = TcpPort::open(poller_.loop(), options, error);
    if (!port_) fail("a port", rank, error.text);
    net_ = open_test_net(*port_, rank);
  }
  int port() const { return port_->port(); }

  void talk(const std::string& peer) {
    WireGroup group;
    group.rank = rank_;
    for (size_t i = 0; i < group.topic.size(); ++i) group.topic[i] = static_cast<uint8_t>(i);
    group.layout = {2, 1, 4, 64 << 10, 64 << 10, 64 << 10};
    group.peers.resize(2);
    group.peers[static_cast<size_t>(1 - rank_)] = {peer};
    connections_ = make_verbs_connections(group, *net_, bell_, budget_);
    Sender& to = *connections_->sender(ConnectionKind::pair, 0, 1 - rank_);
    Receiver& from = *connections_->receiver(ConnectionKind::pair, 0, 1 - rank_);
    for (uint64_t k = 0; k < kMessages; ++k) {
      const size_t bytes = kSizes[k % std::size(kSizes)];
      char* place = sleep_until(bell_, [&] {
        if (to.error()) fail("the sender", rank_, to.error()->text);
        return to.reserve(bytes);
      });
      fill(place, bytes, static_cast<uint64_t>(rank_) + 1, k);
      to.publish(static_cast<uint32_t>(k) * 3);
      uint32_t tag = 0;
      const char* data = sleep_until(bell_, [&] {
        if (from.error()) fail("the receiver", rank_, from.error()->text);
        return from.peek(bytes, &tag);
      });
      CHECK_EQ(tag, static_cast<uint32_t>(k) * 3);
      CHECK(holds(data, bytes, static_cast<uint64_t>(2 - rank_), k));
      from.release();
      from.flush();
    }
    sleep_until(bell_, [&] { return to.settled(); });
    std::printf("rank %d: %d messages each way\n", rank_, static_cast<int>(kMessages));
  }

 private:
  const int rank_;
  Doorbell bell_{};
  MemoryBudget budget_{size_t{64} << 20};
  Poller poller_;
  std::unique_ptr<TcpPort> port_;
  std::unique_ptr<VerbsNet> net_;
  std::unique_ptr<Connections> connections_;
};

}  // namespace

int main(int count, char** words) {
  start("verbs_partner_test", 100);
  Partner first(0);
  if (count > 1) {
    std::printf("port %d\n", first.port());
    std::fflush(stdout);
    first.talk(words[1]);
    return 0;
  }
  Partner second(1);
  const auto address = [](const Partner& p) { return "127.0.0.1:" + std::to_string(p.port()); };
  std::thread other([&] { second.talk(address(first)); });
  first.talk(address(second));
  other.join();
  return 0;
}
