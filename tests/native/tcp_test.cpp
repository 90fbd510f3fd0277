// What every wire promises (wire_promises.h), and what is TCP's own: lent memory, ends that go away, wires that break.
#include "connections/tcp.h"

#include <cstring>
#include <string>
#include <vector>

#include "poller.h"
#include "wire_promises.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

// Two ranks, each with its own poller, port and doorbell.
class TcpPair {
 public:
  explicit TcpPair(size_t capacity = 4096, int64_t grace = 200 * kMs, size_t memory = size_t{256} << 20) {
    const Nonce topic = fresh_nonce();
    for (Side& s : sides_) {
      Error error;
      TcpOptions options;
      options.bind = {"127.0.0.1"};
      options.key = "a key";
      s.budget = std::make_unique<MemoryBudget>(memory);
      s.port = TcpPort::open(s.poller.loop(), options, error);
      CHECK(s.port != nullptr);
    }
    for (int r = 0; r < 2; ++r) {
      WireGroup group;
      group.rank = r, group.topic = topic, group.grace_ns = grace;
      group.layout = {2, 1, 4, capacity, capacity, capacity};
      group.peers.resize(2);
      group.peers[1 - r] = {address(1 - r)};
      sides_[r].connections = make_tcp_connections(group, *sides_[r].port, sides_[r].bell, *sides_[r].budget);
    }
  }
  std::string address(int r) const { return "127.0.0.1:" + std::to_string(sides_[r].port->port()); }
  Doorbell& bell(int r) { return sides_[r].bell; }
  TcpPort& port(int r) { return *sides_[r].port; }
  Sender& sender(int r, int channel = 0) {
    return *sides_[r].connections->sender(ConnectionKind::pair, channel, 1 - r);
  }
  Receiver& receiver(int r, int channel = 0) {
    return *sides_[r].connections->receiver(ConnectionKind::pair, channel, 1 - r);
  }
  void leave(int r) { sides_[r].connections.reset(); }
  void stop(int r) { sides_[r].poller.stop(); }
  void close_port(int r) { sides_[r].port.reset(); }

 private:
  struct Side {
    Doorbell bell{};
    std::unique_ptr<MemoryBudget> budget;
    Poller poller;
    std::unique_ptr<TcpPort> port;
    std::unique_ptr<Connections> connections;
  };
  Side sides_[2];
};

// Lent memory is the caller's again when the kernel has it, read or not.
void returned() {
  TcpPair two(size_t{1} << 20);
  std::vector<char> memory(5000);
  fill(memory.data(), memory.size(), 1, 1);
  sleep_until(two.bell(0), [&] { return two.sender(0).reserve(0); });
  two.sender(0).lend(memory.data(), memory.size(), 1);
  sleep_until(two.bell(0), [&] { return two.sender(0).returned(); });
  CHECK(!two.sender(0).settled());
  std::memset(memory.data(), 0, memory.size());
  take(two, 1, memory.size(), 1, 1);
}

// After take_back() the memory may hold anything: the reader sees what was lent, whole, or nothing.
void taken_back() {
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<char> memory(kBytes, 'a');
  TcpPair two(kBytes);
  Sender& to = two.sender(0);
  put(two, 0, 8, 1, 0);
  take(two, 1, 8, 1, 0);
  sleep_until(two.bell(0), [&] { return to.reserve(0); });
  to.lend(memory.data(), kBytes, 1);
  CHECK(!to.returned());  // no kernel takes so much unread
  to.take_back();
  memory.assign(kBytes, 'b');
  uint32_t tag;
  await("an error", [&] {
    CHECK(two.receiver(1).peek(kBytes, &tag) == nullptr);
    return two.receiver(1).error() != nullptr;
  });
  await("an error", [&] { return to.reserve(8) == nullptr && to.error() != nullptr; });
}

// There is no room before there is a socket: what was published would be lost with its process.
void no_room_before_the_socket() {
  TcpPair two;
  two.stop(1);  // the kernel accepts for it, nobody shakes hands
  const int64_t until = now_ns() + 100 * kMs;
  while (now_ns() < until) CHECK(two.sender(0).reserve(8) == nullptr);
  CHECK_EQ(two.sender(0).waits_for(), 1);
  CHECK(two.sender(0).error() == nullptr);
}

// An error only after the time of grace, then for good, with rank, address and reason.
void breaks() {
  TcpPair two(4096, 300 * kMs);
  put(two, 0, 8, 1, 0);
  take(two, 1, 8, 1, 0);
  put(two, 0, 8, 1, 1);
  two.leave(0);
  take(two, 1, 8, 1, 1);  // what had come still counts
  Receiver& from = two.receiver(1);
  uint32_t tag;
  const int64_t begin = now_ns();
  await("an error", [&] {
    CHECK(from.peek(8, &tag) == nullptr);
    return from.error() != nullptr;
  });
  CHECK(now_ns() - begin > 100 * kMs);
  CHECK(from.error()->cause == Cause::connection);
  CHECK_EQ(from.error()->rank, 0);
  CHECK_CONTAINS(from.error()->text, "rank 0 at 127.0.0.1:");
  CHECK_CONTAINS(from.error()->text, "closed by the other side");
  CHECK(from.peek(8, &tag) == nullptr);
}

void reader_leaves() {
  TcpPair two(4096, 100 * kMs);
  put(two, 0, 8, 1, 0);
  take(two, 1, 8, 1, 0);
  two.leave(1);
  Sender& to = two.sender(0);
  await("an error", [&] {
    if (char* place = to.reserve(8)) fill(place, 8, 1, 1), to.publish(1);
    return to.error() != nullptr;
  });
  CHECK(to.error()->cause == Cause::connection);
  CHECK_CONTAINS(to.error()->text, "rank 1 at " + two.address(1));
  CHECK(to.reserve(8) == nullptr);
  CHECK(!to.settled());
}

void unreachable() {
  TcpPair two(4096, 100 * kMs);
  const std::string address = two.address(1);
  two.leave(1);
  two.close_port(1);
  Sender& to = two.sender(0);
  await("an error", [&] {
    to.reserve(8);
    return to.error() != nullptr;
  });
  CHECK_CONTAINS(to.error()->text, address);
  CHECK_CONTAINS(to.error()->text, "Connection refused");
  CHECK_EQ(to.error()->rank, 1);
}

void no_memory_to_read() {
  std::vector<char> memory(1 << 20);  // outlives the link that is lent it
  TcpPair two(size_t{1} << 20, 100 * kMs, size_t{1} << 20);
  sleep_until(two.bell(0), [&] { return two.sender(0).reserve(0); });
  two.sender(0).lend(memory.data(), memory.size(), 1);
  uint32_t tag;
  await("an error", [&] { return !two.receiver(1).peek(memory.size(), &tag) && two.receiver(1).error(); });
  CHECK(two.receiver(1).error()->cause == Cause::no_memory);
  CHECK_CONTAINS(two.receiver(1).error()->text, "memory.limit");
}

// Ends are unmade at any moment of the making.
void unmade() {
  Random random(1);
  for (int i = 0; i < 60; ++i) {
    TcpPair two;
    for (int r = 0; r < 2; ++r)
      if (char* place = two.sender(r).reserve(8)) fill(place, 8, 1, 0), two.sender(r).publish(0);
    const int64_t until = now_ns() + static_cast<int64_t>(random.below(600'000));
    while (now_ns() < until) continue;
    two.leave(static_cast<int>(random.below(2)));
  }
}

}  // namespace

int main() {
  start("tcp_test", 240);
  const std::pair<const char*, void (*)()> promises[] = {
      {"to and fro, asleep", [] { to_and_fro<TcpPair>(3000); }},
      {"streams, asleep", [] { streams_asleep<TcpPair>(120); }},
      {"counts", counts<TcpPair>},
      {"a reader flushes and leaves", reader_flushes_and_leaves<TcpPair>},
      {"returned", returned},
      {"taken back", taken_back},
      {"a writer leaves", [] { writer_leaves<TcpPair>(size_t{8} << 20); }},
      {"no room before the socket", no_room_before_the_socket},
      {"a writer is gone", breaks},
      {"a reader is gone", reader_leaves},
      {"unreachable", unreachable},
      {"no memory to read", no_memory_to_read},
      {"unmade", unmade},
  };
  for (const auto& [name, promise] : promises) {
    section(name);
    promise();
  }
  return 0;
}
