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

constexpr int64_t kThirdNs = 1'000'000'000;
constexpr EventLoop::TimerId kNoMore = ~EventLoop::TimerId{0};
constexpr int kLooks = 12;       // for silence, in dead_after
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
  int64_t unheard_ns = 0, asked_ns = 0;  // look_for_silence: nothing has come; an answer is due
};

ControlPlane::ControlPlane(EventLoop& loop, const std::string& key, int64_t dead_after_ns, std::function<void()> wake)
    : loop_(loop),
      key_(key),
      dead_after_ns_(std::max<int64_t>(1, dead_after_ns / (3 * kThirdNs)) * 3 * kThirdNs),
      wake_(std::move(wake)),
      topic_(nonce_of(key)) {}

ControlPlane::~ControlPlane() {
  if (port_ != nullptr) port_->forget(topic_);
  std::map<std::string, Dial> dials;
  EventLoop::TimerId look;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    dials.swap(dials_);
    look = std::exchange(next_look_, kNoMore);
  }
  loop_.cancel(look);
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
  ask_for_life(fd, static_cast<int>(dead_after_ns_ / (3 * kThirdNs)));
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
  if (next_look_ != 0) return;
  looked_at_ = now_ns();
  next_look_ = loop_.at(looked_at_ + dead_after_ns_ / kLooks, [this] { look_for_silence(); });
}

// Who has not been heard for dead_after, less the time from one look to the next, although it was asked a third of that ago. Time counts as far as this
// process was there to see it pass: of a look that comes late, because this machine is crowded or was paused, two looks' worth. What comes meanwhile may lie
// unread, too. A live peer whose window is shut is asked ever more seldom, but answers.
void ControlPlane::look_for_silence() {
  std::vector<std::shared_ptr<Guest>> silent;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const int64_t now = now_ns(), between = dead_after_ns_ / kLooks;
    const int64_t seen = std::min(now - std::exchange(looked_at_, now), 2 * between);
    for (const auto& g : guests_) {
      bool asked = false;
      g->unheard_ns = std::min(g->link->unheard_ns(asked), g->unheard_ns + seen);
      g->asked_ns = asked ? g->asked_ns + seen : 0;
      if (g->unheard_ns > dead_after_ns_ - between && g->asked_ns >= dead_after_ns_ / 3) silent.push_back(g);
    }
  }
  for (const auto& g : silent) g->link->give_up();
  const std::lock_guard<std::mutex> hold(mutex_);  // after all else: who cancels the look waits for this one
  if (next_look_ == kNoMore) return;
  next_look_ = guests_.empty() ? 0 : loop_.at(looked_at_ + dead_after_ns_ / kLooks, [this] { look_for_silence(); });
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
    if (!it->second.failed) return nullptr;
    // An earlier group's, that ran out of time before it heard of this: not this one's.
    const bool own = it->second.deadline == deadline_ns;
    if (own) error = it->second.error;
    dials_.erase(it);
    if (own) return nullptr;
  }
  if (key < key_ || port_ == nullptr) return nullptr;
  Greeting greeting;
  greeting.topic = nonce_of(key);
  greeting.purpose = Purpose::control;
  // `done` is never called from inside dial(), and waits for the lock.
  Dial& dial = dials_[key];
  dial.deadline = deadline_ns;
  dial.id = port_->dial(addresses, greeting, deadline_ns, [this, key](int fd, const Error& e) { dialled(key, fd, e); });
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
