#include "connections/verbs.h"

#include <unistd.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "connections/verbs_receiver.h"
#include "connections/verbs_sender.h"

namespace ringcomm {
namespace {

enum Kind : uint8_t { kPair = 0, kFanOut = 1, kMessages = 2, kKinds = 3 };
// Added in greetings: a socket of one kind of connection must not be taken for one of another.
constexpr uint8_t kOverVerbs = 16;

// An end, as the greeting of its socket names it: kind, channel, the other rank (a fan-out's own sender: -1).
using End = std::tuple<uint8_t, int, int>;

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
    if (kind == ConnectionKind::fan_out) return sender({kFanOut, channel, -1});
    return sender({kPair, channel, peer});
  }
  Receiver* receiver(ConnectionKind kind, int channel, int peer) override {
    return receiver({kind == ConnectionKind::fan_out ? kFanOut : kPair, channel, peer});
  }
  Sender* message_sender(int peer) override { return sender({kMessages, 0, peer}); }
  Receiver* message_receiver(int peer) override { return receiver({kMessages, 0, peer}); }
  const char* kind() const override { return "verbs"; }

 private:
  TcpPort& port() const { return shared_->net.port(); }
  size_t capacity(const End& end) const {
    const ShmLayout& layout = shared_->group.layout;
    switch (std::get<0>(end)) {
      case kFanOut:
        return layout.fan_out_capacity;
      case kMessages:
        return layout.message_capacity;
      default:
        return layout.pair_capacity;
    }
  }
  VerbsSender::Reader reader(const End& end, int rank) const {
    Greeting g;
    g.topic = shared_->group.topic;
    g.kind = kOverVerbs + std::get<0>(end);
    g.channel = static_cast<uint16_t>(std::get<1>(end));
    g.from = shared_->group.rank;
    return {rank, g};
  }

  Sender* sender(const End& end) {
    const std::lock_guard<std::mutex> hold(mutex_);  // collectives and messages make theirs in threads of their own
    auto& s = senders_[end];
    if (s) return s.get();
    std::vector<VerbsSender::Reader> readers;
    for (int r = 0; r < shared_->group.layout.ranks; ++r)
      if (std::get<0>(end) == kFanOut ? shared_->group.reaches(r) : r == std::get<2>(end))
        readers.push_back(reader(end, r));
    s = std::make_shared<VerbsSender>(shared_, late_, capacity(end), readers);
    late_.add(s.get());
    return s.get();
  }

  Receiver* receiver(const End& end) {
    const std::lock_guard<std::mutex> hold(mutex_);
    return made(end).get();
  }
  const std::shared_ptr<VerbsReceiver>& made(const End& end) {
    auto& r = receivers_[end];
    if (r) return r;
    r = std::make_shared<VerbsReceiver>(shared_, late_, capacity(end), std::get<1>(end), std::get<2>(end));
    late_.add(r.get());
    return r;
  }

  // The poller: a writer's socket. Its receiver may not have been asked for yet, but is made, so that the queue pairs come about and the writer can go on, or go
  // away, without waiting for anybody. A second socket for the same end is nobody's.
  void arrived(const Greeting& g, int fd) {
    const ShmLayout& layout = shared_->group.layout;
    const bool valid = g.purpose == Purpose::data && g.kind >= kOverVerbs && g.kind < kOverVerbs + kKinds &&
                       g.channel < layout.channels && g.from >= 0 && g.from < layout.ranks &&
                       shared_->group.reaches(g.from);
    if (!valid) {
      close(fd);
      return;
    }
    const std::lock_guard<std::mutex> hold(mutex_);
    const End end{static_cast<uint8_t>(g.kind - kOverVerbs), g.channel, g.from};
    if (!made(end)->attach(fd)) close(fd);
  }

  void part(std::shared_ptr<VerbsEnd> end) {
    if (!end->over()) shared_->net.linger(std::move(end));
  }

  const std::shared_ptr<VerbsShared> shared_;
  LateCounts late_;
  uint64_t registered_ = 0;  // at the port, for its settle()
  std::mutex mutex_;         // the poller brings sockets while ends are made
  std::map<End, std::shared_ptr<VerbsSender>> senders_;
  std::map<End, std::shared_ptr<VerbsReceiver>> receivers_;
};

}  // namespace

std::unique_ptr<Connections> make_verbs_connections(WireGroup group, VerbsNet& net, Doorbell& own,
                                                    MemoryBudget& budget) {
  return std::make_unique<VerbsConnections>(std::move(group), net, own, budget);
}

}  // namespace ringcomm
