#include "engine/control_plane.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "core/log.h"

namespace ringcomm {
namespace {

constexpr size_t kEnded = 1024;  // guessed: who asks late asks within one group's life

Nonce nonce_of(const std::string& key) {
  Nonce nonce{};
  from_hex(key, nonce);
  return nonce;
}

}  // namespace

// The handlers of a link keep it; it keeps the link. Dropped when the link ends, or with the plane.
struct ControlPlane::Guest {
  std::shared_ptr<ControlLink> link;
  std::shared_ptr<PeerProcess> peer;  // the poller's; null until the hello
  std::string dialled;
};

ControlPlane::ControlPlane(EventLoop& loop, const std::string& key, int64_t dead_after_ns, std::function<void()> wake)
    : loop_(loop), key_(key), dead_after_ns_(dead_after_ns), wake_(std::move(wake)), topic_(nonce_of(key)) {}

ControlPlane::~ControlPlane() {
  if (port_ != nullptr) port_->forget(topic_);
  std::map<std::string, Dial> dials;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    dials.swap(dials_);
  }
  for (auto& [key, dial] : dials)
    if (!dial.failed) port_->cancel(dial.id);
  // Released without the lock: a link's end waits for its handler.
  std::set<std::shared_ptr<Guest>> guests;
  std::map<std::string, std::shared_ptr<PeerProcess>> peers;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    guests.swap(guests_);
    peers.swap(peers_);
  }
  for (const auto& guest : guests) guest->link.reset(), guest->peer.reset();
}

void ControlPlane::open(TcpPort& port) {
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    port_ = &port;
  }
  port.expect(topic_, [this](const Greeting& greeting, int fd) {
    if (greeting.purpose == Purpose::control)
      adopt(fd);
    else
      close(fd);
  });
}

void ControlPlane::adopt(int fd, const std::string& dialled) {
  watch_for_silence(fd, dead_after_ns_);
  auto guest = std::make_shared<Guest>();
  guest->dialled = dialled;
  // Held, so that no frame is looked at before the guest is complete.
  const std::lock_guard<std::mutex> hold(mutex_);
  const std::weak_ptr<Guest> weak = guest;
  guest->link = ControlLink::start(
      loop_, fd,
      [this, weak](FrameKind kind, const std::string& body) {
        if (const auto g = weak.lock()) heard(g, kind, body);
      },
      [this, weak](int code) {
        if (const auto g = weak.lock()) ended(g, code);
      });
  if (!guest->link) return;
  guest->link->send(FrameKind::hello, HelloBody{topic_});
  guests_.insert(guest);
}

void ControlPlane::heard(const std::shared_ptr<Guest>& guest, FrameKind kind, const std::string& body) {
  if (HelloBody hello; kind == FrameKind::hello && unpack(body, hello)) return greeted(guest, hello);
  if (!guest->peer || body.size() < sizeof(Nonce)) return;
  Nonce topic;
  std::memcpy(topic.data(), body.data(), topic.size());
  std::shared_ptr<ControlGroup> group;
  int left = -1;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    if (const auto it = groups_.find(topic); it != groups_.end()) group = it->second.lock();
    const auto gone = std::find_if(ended_.begin(), ended_.end(), [&](const auto& e) { return e.first == topic; });
    if (!group && gone != ended_.end()) left = gone->second;
  }
  if (group) {
    if (!group->take(kind, body, *guest->peer)) log(LogLevel::info, "control: a frame of an unknown kind is ignored");
  } else if (kind == FrameKind::ask && left >= 0) {
    ReportBody report{};
    report.topic = topic, report.rank = left, report.state = RankState::left;
    guest->peer->link->send(FrameKind::report, report);
  }
}

void ControlPlane::greeted(const std::shared_ptr<Guest>& guest, const HelloBody& hello) {
  auto peer = std::make_shared<PeerProcess>();
  peer->key = to_hex(hello.process);
  std::shared_ptr<PeerProcess> before;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    peer->link = guest->link;
    guest->peer = peer;
    // It dialled again, so it knows that the socket before is broken.
    before = std::exchange(peers_[peer->key], peer);
    dials_.erase(peer->key);
  }
  if (before) before->dead.store(true);
  wake_();
}

void ControlPlane::ended(const std::shared_ptr<Guest>& guest, int code) {
  const std::shared_ptr<PeerProcess> peer = guest->peer;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    guests_.erase(guest);
    if (!peer && !guest->dialled.empty()) {
      Dial& dial = dials_[guest->dialled];
      dial.failed = true;
      dial.error.cause = Cause::connection;
      std::snprintf(dial.error.text, sizeof dial.error.text, "the control socket was closed as soon as it was made: %s",
                    code != 0 ? std::strerror(code) : "by the other end");
    }
    if (peer)
      if (const auto it = peers_.find(peer->key); it != peers_.end() && it->second == peer) peers_.erase(it);
  }
  guest->peer.reset();
  if (!peer) return;
  if (code != 0) log(LogLevel::debug, std::string("control: a peer's socket ended: ") + std::strerror(code));
  peer->cut.store(code != 0 && code != ECONNRESET && code != EPIPE && code != EPROTO);
  peer->dead.store(true, std::memory_order_seq_cst);
  wake_();
}

// ---------------------------------------------------------------------------------------------------------------- dialling

std::shared_ptr<PeerProcess> ControlPlane::reach(const std::string& key, const std::vector<std::string>& addresses,
                                                 int64_t deadline_ns, Error& error) {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (const auto it = peers_.find(key); it != peers_.end()) return it->second;
  if (const auto it = dials_.find(key); it != dials_.end()) {
    if (it->second.failed) {
      error = it->second.error;
      dials_.erase(it);
    }
    return nullptr;
  }
  if (key < key_ || port_ == nullptr) return nullptr;
  Greeting greeting;
  greeting.topic = nonce_of(key);
  greeting.purpose = Purpose::control;
  // `done` is never called from inside dial(), and waits for the lock.
  dials_[key].id =
      port_->dial(addresses, greeting, deadline_ns, [this, key](int fd, const Error& e) { dialled(key, fd, e); });
  return nullptr;
}

void ControlPlane::dialled(const std::string& key, int fd, const Error& error) {
  if (fd >= 0) {
    adopt(fd, key);
    return;  // the dial counts as under way until the hello
  }
  const std::lock_guard<std::mutex> hold(mutex_);
  Dial& dial = dials_[key];
  dial.failed = true;
  dial.error = error;
}

// ---------------------------------------------------------------------------------------------------------------- groups

void ControlPlane::enter(const std::shared_ptr<ControlGroup>& group) {
  const std::lock_guard<std::mutex> hold(mutex_);
  groups_[group->topic()] = group;
}

void ControlPlane::leave(const ControlGroup& group) {
  const std::lock_guard<std::mutex> hold(mutex_);
  groups_.erase(group.topic());
  ended_.emplace_back(group.topic(), group.rank());
  if (ended_.size() > kEnded) ended_.pop_front();
}

void ControlPlane::settle(int64_t until_ns) const {
  const auto delivered = [this] {
    const std::lock_guard<std::mutex> hold(mutex_);
    return std::all_of(guests_.begin(), guests_.end(), [](const auto& g) { return g->link->delivered(); });
  };
  while (!delivered() && now_ns() < until_ns) {
    const timespec nap{0, 1'000'000};
    nanosleep(&nap, nullptr);
  }
}

}  // namespace ringcomm
