#include "connections/tcp.h"

#include <unistd.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "connections/tcp_receiver.h"
#include "connections/tcp_sender.h"

namespace ringcomm {
namespace {

enum Kind : uint8_t { kPair = 0, kFanOut = 1, kMessages = 2, kKinds = 3 };

// An end, as the greeting of its socket names it: kind, channel, the other rank (a fan-out's own sender: -1).
using End = std::tuple<uint8_t, int, int>;

class TcpConnections final : public Connections {
 public:
  TcpConnections(WireGroup group, TcpPort& port, Doorbell& own, MemoryBudget& budget)
      : shared_{std::move(group), port, own, budget}, late_(port.loop()) {
    registered_ = port.add_sender([this] { return late_.all_told(); });
    port.expect(shared_.group.topic, [this](const Greeting& greeting, int fd) { arrived(greeting, fd); });
  }
  ~TcpConnections() override {
    shared_.port.forget(shared_.group.topic);
    shared_.port.forget_sender(registered_);
    late_.stop();
    for (const auto& [end, fd] : early_) close(fd);
  }

  Sender* sender(ConnectionKind kind, int channel, int peer) override {
    const ShmLayout& layout = shared_.group.layout;
    if (kind == ConnectionKind::fan_out)
      return sender({kFanOut, channel, -1}, layout.fan_out_capacity, "the slots of a fan-out connection over TCP");
    return sender({kPair, channel, peer}, layout.pair_capacity, "the slots of a pair connection over TCP");
  }
  Receiver* receiver(ConnectionKind kind, int channel, int peer) override {
    const ShmLayout& layout = shared_.group.layout;
    if (kind == ConnectionKind::fan_out) return receiver({kFanOut, channel, peer}, layout.fan_out_capacity);
    return receiver({kPair, channel, peer}, layout.pair_capacity);
  }
  Sender* message_sender(int peer) override {
    return sender({kMessages, 0, peer}, shared_.group.layout.message_capacity,
                  "the slots of a point-to-point connection over TCP");
  }
  Receiver* message_receiver(int peer) override {
    return receiver({kMessages, 0, peer}, shared_.group.layout.message_capacity);
  }
  const char* kind() const override { return "tcp"; }

 private:
  bool reachable(int rank) const { return !shared_.group.peers[static_cast<size_t>(rank)].empty(); }
  TcpSender::Reader reader(const End& end, int rank) const {
    Greeting g;
    g.topic = shared_.group.topic;
    g.kind = std::get<0>(end);
    g.channel = static_cast<uint16_t>(std::get<1>(end));
    g.from = shared_.group.rank;
    return {rank, g};
  }

  Sender* sender(const End& end, size_t capacity, const char* what) {
    const std::lock_guard<std::mutex> hold(mutex_);  // collectives and messages make theirs in threads of their own
    auto& s = senders_[end];
    if (s) return s.get();
    std::vector<TcpSender::Reader> readers;
    for (int r = 0; r < shared_.group.layout.ranks; ++r)
      if (std::get<0>(end) == kFanOut ? reachable(r) : r == std::get<2>(end)) readers.push_back(reader(end, r));
    s = std::make_unique<TcpSender>(shared_, capacity, readers, what);
    return s.get();
  }

  Receiver* receiver(const End& end, size_t capacity) {
    const std::lock_guard<std::mutex> hold(mutex_);
    auto& r = receivers_[end];
    if (r) return r.get();
    r = std::make_unique<TcpReceiver>(shared_, late_, capacity, std::get<2>(end));
    late_.add(r.get());
    if (const auto early = early_.find(end); early != early_.end()) {
      if (!r->attach(early->second)) close(early->second);
      early_.erase(early);
    }
    return r.get();
  }

  // The poller: a writer's socket. Its reader may not have been asked for yet. A second one for the same end is nobody's.
  void arrived(const Greeting& g, int fd) {
    const ShmLayout& layout = shared_.group.layout;
    const bool valid = g.purpose == Purpose::data && g.kind < kKinds && g.channel < layout.channels && g.from >= 0 &&
                       g.from < layout.ranks && reachable(g.from);
    const End end{g.kind, g.channel, g.from};
    const std::lock_guard<std::mutex> hold(mutex_);
    const auto known = receivers_.find(end);
    const bool taken =
        valid && (known == receivers_.end() ? early_.emplace(end, fd).second : known->second->attach(fd));
    if (!taken) close(fd);
  }

  TcpShared shared_;
  LateCounts late_;
  uint64_t registered_ = 0;  // at the port, for its settle()
  std::map<End, std::unique_ptr<TcpSender>> senders_;
  std::mutex mutex_;  // the poller brings sockets while receivers are made
  std::map<End, std::unique_ptr<TcpReceiver>> receivers_;
  std::map<End, int> early_;
};

}  // namespace

std::unique_ptr<Connections> make_tcp_connections(WireGroup group, TcpPort& port, Doorbell& own, MemoryBudget& budget) {
  return std::make_unique<TcpConnections>(std::move(group), port, own, budget);
}

}  // namespace ringcomm
