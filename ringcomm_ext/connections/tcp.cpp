#include "connections/tcp.h"

#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

#include "connections/tcp_receiver.h"
#include "connections/tcp_sender.h"
#include "connections/wire_ends.h"

namespace ringcomm {
namespace {

constexpr uint8_t kFirstKind = 0;  // in greetings

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
    if (kind == ConnectionKind::fan_out)
      return sender({WireEnd::fan_out, channel, -1}, "the slots of a fan-out connection over TCP");
    return sender({WireEnd::pair, channel, peer}, "the slots of a pair connection over TCP");
  }
  Receiver* receiver(ConnectionKind kind, int channel, int peer) override {
    return receiver({kind == ConnectionKind::fan_out ? WireEnd::fan_out : WireEnd::pair, channel, peer});
  }
  Sender* message_sender(int peer) override {
    return sender({WireEnd::messages, 0, peer}, "the slots of a point-to-point connection over TCP");
  }
  Receiver* message_receiver(int peer) override { return receiver({WireEnd::messages, 0, peer}); }
  const char* kind() const override { return "tcp"; }

 private:
  size_t capacity(const WireEnd& end) const { return capacity_of(end, shared_.group.layout); }

  Sender* sender(const WireEnd& end, const char* what) {
    const std::lock_guard<std::mutex> hold(mutex_);  // collectives and messages make theirs in threads of their own
    auto& s = senders_[end];
    if (s) return s.get();
    std::vector<TcpSender::Reader> readers;
    for (int rank : readers_of(end, shared_.group))
      readers.push_back({rank, greeting_of(end, shared_.group, kFirstKind)});
    s = std::make_unique<TcpSender>(shared_, capacity(end), readers, what);
    return s.get();
  }

  Receiver* receiver(const WireEnd& end) {
    const std::lock_guard<std::mutex> hold(mutex_);
    auto& r = receivers_[end];
    if (r) return r.get();
    r = std::make_unique<TcpReceiver>(shared_, late_, capacity(end), end.other);
    late_.add(r.get());
    if (const auto early = early_.find(end); early != early_.end()) {
      if (!r->attach(early->second)) close(early->second);
      early_.erase(early);
    }
    return r.get();
  }

  // The poller: a writer's socket. Its reader may not have been asked for yet. A second one for the same end is nobody's.
  void arrived(const Greeting& g, int fd) {
    WireEnd end;
    if (!find_end(g, shared_.group, kFirstKind, end)) {
      close(fd);
      return;
    }
    const std::lock_guard<std::mutex> hold(mutex_);
    const auto known = receivers_.find(end);
    const bool taken = known == receivers_.end() ? early_.emplace(end, fd).second : known->second->attach(fd);
    if (!taken) close(fd);
  }

  TcpShared shared_;
  LateCounts late_;
  uint64_t registered_ = 0;  // at the port, for its settle()
  std::map<WireEnd, std::unique_ptr<TcpSender>> senders_;
  std::mutex mutex_;  // the poller brings sockets while receivers are made
  std::map<WireEnd, std::unique_ptr<TcpReceiver>> receivers_;
  std::map<WireEnd, int> early_;
};

}  // namespace

std::unique_ptr<Connections> make_tcp_connections(WireGroup group, TcpPort& port, Doorbell& own, MemoryBudget& budget) {
  return std::make_unique<TcpConnections>(std::move(group), port, own, budget);
}

}  // namespace ringcomm
