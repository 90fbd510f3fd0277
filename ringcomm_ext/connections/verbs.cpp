#include "connections/verbs.h"

#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

#include "connections/verbs_receiver.h"
#include "connections/verbs_sender.h"
#include "connections/wire_ends.h"

namespace ringcomm {
namespace {

constexpr uint8_t kFirstKind = 16;  // in greetings

class VerbsConnections final : public Connections {
 public:
  VerbsConnections(WireGroup group, VerbsNet& net, Doorbell& own, MemoryBudget& budget)
      : shared_(new VerbsShared{std::move(group), net, own, budget}), late_(net.port().loop()) {
    registered_ = port().add_sender([this] { return late_.all_told(); });
    port().expect(shared_->group.topic, [this](const Greeting& greeting, int fd) { arrived(greeting, fd); });
  }
  ~VerbsConnections() override {
    port().forget(shared_->group.topic);
    port().forget_sender(registered_);
    late_.stop();
    for (auto& [end, sender] : senders_) part(std::move(sender));
    for (auto& [end, receiver] : receivers_) part(std::move(receiver));
  }

  Sender* sender(ConnectionKind kind, int channel, int peer) override {
    if (kind == ConnectionKind::fan_out) return sender({WireEnd::fan_out, channel, -1});
    return sender({WireEnd::pair, channel, peer});
  }
  Receiver* receiver(ConnectionKind kind, int channel, int peer) override {
    return receiver({kind == ConnectionKind::fan_out ? WireEnd::fan_out : WireEnd::pair, channel, peer});
  }
  Sender* message_sender(int peer) override { return sender({WireEnd::messages, 0, peer}); }
  Receiver* message_receiver(int peer) override { return receiver({WireEnd::messages, 0, peer}); }
  const char* kind() const override { return "verbs"; }

 private:
  TcpPort& port() const { return shared_->net.port(); }
  size_t capacity(const WireEnd& end) const { return capacity_of(end, shared_->group.layout); }

  Sender* sender(const WireEnd& end) {
    const std::lock_guard<std::mutex> hold(mutex_);  // collectives and messages make theirs in threads of their own
    auto& s = senders_[end];
    if (s) return s.get();
    std::vector<VerbsSender::Reader> readers;
    for (int rank : readers_of(end, shared_->group))
      readers.push_back({rank, greeting_of(end, shared_->group, kFirstKind)});
    s = std::make_shared<VerbsSender>(shared_, late_, capacity(end), readers);
    late_.add(s.get());
    return s.get();
  }

  Receiver* receiver(const WireEnd& end) {
    const std::lock_guard<std::mutex> hold(mutex_);
    return made(end).get();
  }
  const std::shared_ptr<VerbsReceiver>& made(const WireEnd& end) {
    auto& r = receivers_[end];
    if (r) return r;
    r = std::make_shared<VerbsReceiver>(shared_, late_, capacity(end), end.channel, end.other);
    late_.add(r.get());
    return r;
  }

  // The poller: a writer's socket. Its receiver may not have been asked for yet, but is made, so that the queue pairs come about and the writer can go on, or go
  // away, without waiting for anybody. A second socket for the same end is nobody's.
  void arrived(const Greeting& g, int fd) {
    WireEnd end;
    if (!find_end(g, shared_->group, kFirstKind, end)) {
      close(fd);
      return;
    }
    const std::lock_guard<std::mutex> hold(mutex_);
    if (!made(end)->attach(fd)) close(fd);
  }

  void part(std::shared_ptr<VerbsEnd> end) {
    if (!end->over()) shared_->net.linger(std::move(end));
  }

  const std::shared_ptr<VerbsShared> shared_;
  LateCounts late_;
  uint64_t registered_ = 0;  // at the port, for its settle()
  std::mutex mutex_;         // the poller brings sockets while ends are made
  std::map<WireEnd, std::shared_ptr<VerbsSender>> senders_;
  std::map<WireEnd, std::shared_ptr<VerbsReceiver>> receivers_;
};

}  // namespace

std::unique_ptr<Connections> make_verbs_connections(WireGroup group, VerbsNet& net, Doorbell& own,
                                                    MemoryBudget& budget) {
  return std::make_unique<VerbsConnections>(std::move(group), net, own, budget);
}

}  // namespace ringcomm
