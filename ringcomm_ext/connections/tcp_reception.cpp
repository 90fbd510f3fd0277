#include "connections/tcp_reception.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace ringcomm {
namespace {

constexpr int kAtOnce = 32;  // accepted before the poller looks at others
constexpr int64_t kPauseNs =
    100'000'000;  // without descriptors the listener stays readable: asking at once would burn a core

}  // namespace

Reception::~Reception() {
  std::vector<Watch> watches;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    watches.swap(listeners_);
  }
  for (Watch& w : watches) {
    const int fd = w.fd;
    loop_.remove(w);
    close(fd);
  }
  watches.clear();
  std::vector<EventLoop::TimerId> timers;
  std::vector<int> fds;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    timers.push_back(resume_);
    for (auto& [id, g] : guests_) watches.push_back(g.watch), timers.push_back(g.timer), fds.push_back(g.watch.fd);
    for (auto& [id, p] : parked_) timers.push_back(p.timer), fds.push_back(p.arrival.second);
    for (auto& [topic, e] : expected_) {
      timers.push_back(e.call);
      for (const Arrival& a : e.arrivals) fds.push_back(a.second);
    }
    guests_.clear(), parked_.clear(), expected_.clear();
  }
  for (Watch& w : watches) loop_.remove(w);
  for (EventLoop::TimerId& t : timers) loop_.cancel(t);
  for (int fd : fds) close(fd);
}

// Under the lock.
void Reception::tell(const std::string& from, const char* why, LogLevel level) {
  bool& told = told_[level == LogLevel::warn ? 0 : 1];
  if (told && !logs(LogLevel::debug)) return;
  log(told ? LogLevel::debug : level, "a connection from " + from + " was turned away: " + why +
                                          (told ? "" : "; more of them will be turned away without a word"));
  told = true;
}

// --------------------------------------------------------------------------------------------------------------- guests

void Reception::welcome(int listener) {
  const std::lock_guard<std::mutex> hold(mutex_);
  for (int i = 0; i < kAtOnce; ++i) {
    TcpAddress from;
    from.length = sizeof from.storage;
    const int fd = accept4(listener, from.get(), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      receive(fd, from);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return pause();
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;
    }
  }
}

void Reception::receive(int fd, const TcpAddress& from) {
  if (guests_.size() >= options_.most_guests) turn_away(guests_.begin()->first, "too many came at once");
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  const uint64_t id = next_++;
  Guest guest;
  guest.address = from;
  guest.challenge = fresh_challenge();
  const Hello hello = make_hello(guest.challenge);
  if (send(fd, hello.data(), hello.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(hello.size()))
    guest.watch = loop_.add(fd, EPOLLIN | EPOLLRDHUP, [this, id](uint32_t) { hear(id); });
  if (!guest.watch) {
    close(fd);
    return;
  }
  guest.timer = loop_.at(now_ns() + options_.handshake_ns, [this, id] {
    const std::lock_guard<std::mutex> hold(mutex_);
    turn_away(id, "it did not greet in time");
  });
  guests_[id] = guest;
}

void Reception::pause() {
  if (resume_ != 0) return;
  for (const Watch& w : listeners_) loop_.change(w, 0);
  resume_ = loop_.at(now_ns() + kPauseNs, [this] {
    const std::lock_guard<std::mutex> hold(mutex_);
    resume_ = 0;
    for (const Watch& w : listeners_) loop_.change(w, EPOLLIN);
  });
}

void Reception::turn_away(uint64_t id, const char* why, LogLevel level) {
  const auto it = guests_.find(id);
  if (it == guests_.end()) return;
  Guest guest = it->second;
  guests_.erase(it);
  const int fd = guest.watch.fd;
  tell(to_text(guest.address), why, level);
  loop_.remove(guest.watch);
  loop_.cancel(guest.timer);
  close(fd);
}

// Exactly the answer is read: what follows belongs to whoever gets the socket.
void Reception::hear(uint64_t id) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const auto it = guests_.find(id);
  if (it == guests_.end()) return;
  Guest& g = it->second;
  while (g.have < g.answer.size()) {
    const ssize_t n = recv(g.watch.fd, g.answer.data() + g.have, g.answer.size() - g.have, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    // Who hangs up without a word is a port scan, or a rank that needed the connection no more.
    if (n <= 0)
      return turn_away(id, n == 0 ? "it was closed before it had greeted" : std::strerror(errno),
                       g.have == 0 ? LogLevel::info : LogLevel::warn);
    g.have += static_cast<size_t>(n);
    if (!has_magic(g.answer.data(), g.have)) return turn_away(id, "it does not speak as ringcomm does");
  }
  Greeting greeting;
  Challenge diallers;
  if (!read_answer(options_.key, g.challenge, g.answer, diallers, greeting))
    return turn_away(id, "it does not hold the key of this job");
  // Who answered and gave up since, while this process was held up, dials again: its new socket must not find this one in its place.
  char beyond;
  if (recv(g.watch.fd, &beyond, 1, MSG_PEEK) == 0)
    return turn_away(id, "it was closed during the handshake", LogLevel::info);
  admit(id, greeting, diallers);
}

void Reception::admit(uint64_t id, const Greeting& greeting, const Challenge& diallers) {
  const auto it = guests_.find(id);
  Guest guest = it->second;
  const Digest proof = make_proof(options_.key, guest.challenge, diallers, greeting);
  const int fd = guest.watch.fd;
  if (send(fd, proof.data(), proof.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(proof.size()))
    return turn_away(id, "it was closed during the handshake");
  guests_.erase(it);
  loop_.remove(guest.watch);
  loop_.cancel(guest.timer);
  const auto expected = expected_.find(greeting.topic);
  if (expected == expected_.end()) return park({greeting, fd});
  expected->second.arrivals.emplace_back(greeting, fd);
  schedule(greeting.topic, expected->second);
}

// --------------------------------------------------------------------------------------------------------------- topics

void Reception::park(const Arrival& arrival) {
  if (options_.most_parked == 0) {
    close(arrival.second);
    return;
  }
  if (parked_.size() >= options_.most_parked) unpark(parked_.begin()->first, "too many wait for groups not made yet");
  const uint64_t id = next_++;
  parked_[id] = {arrival, loop_.at(now_ns() + options_.parked_ns, [this, id] {
                   const std::lock_guard<std::mutex> hold(mutex_);
                   unpark(id, "nobody expected what it was for");
                 })};
}

void Reception::unpark(uint64_t id, const char* why) {
  const auto it = parked_.find(id);
  if (it == parked_.end()) return;
  const Parked p = it->second;
  parked_.erase(it);
  tell(peer_address(p.arrival.second), why);
  EventLoop::TimerId timer = p.timer;
  loop_.cancel(timer);
  close(p.arrival.second);
}

void Reception::expect(const Nonce& topic, TcpPort::Accept accept) {
  std::vector<EventLoop::TimerId> timers;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    Expected& e = expected_[topic];
    e.accept = std::move(accept);
    for (auto it = parked_.begin(); it != parked_.end();) {
      if (it->second.arrival.first.topic != topic) {
        ++it;
        continue;
      }
      e.arrivals.push_back(it->second.arrival);
      timers.push_back(it->second.timer);
      it = parked_.erase(it);
    }
    schedule(topic, e);
  }
  for (EventLoop::TimerId& t : timers) loop_.cancel(t);  // without the lock: one may run, and want it
}

void Reception::schedule(const Nonce& topic, Expected& expected) {
  if (expected.arrivals.empty() || expected.call != 0) return;
  expected.call = loop_.at(0, [this, topic] { hand_over(topic); });
}

void Reception::hand_over(const Nonce& topic) {
  while (true) {
    TcpPort::Accept accept;
    Arrival arrival;
    {
      const std::lock_guard<std::mutex> hold(mutex_);
      const auto it = expected_.find(topic);
      if (it == expected_.end()) return;
      if (it->second.arrivals.empty()) {
        it->second.call = 0;
        return;
      }
      arrival = it->second.arrivals.front();
      it->second.arrivals.pop_front();
      accept = it->second.accept;
    }
    accept(arrival.first, arrival.second);
  }
}

void Reception::forget(const Nonce& topic) {
  Expected gone;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const auto it = expected_.find(topic);
    if (it == expected_.end()) return;
    gone = std::move(it->second);
    expected_.erase(it);
  }
  loop_.cancel(gone.call);
  for (const Arrival& a : gone.arrivals) close(a.second);
}

}  // namespace ringcomm
