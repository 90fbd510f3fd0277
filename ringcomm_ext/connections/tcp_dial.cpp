#include "connections/tcp_dial.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ringcomm {
namespace {

constexpr int64_t kSilenceNs =
    3'000'000'000;  // for an address that does not answer, where there are others; a lost SYN comes again after 1 s
constexpr int64_t kRetryNs = 50'000'000, kLongestRetryNs = 1'000'000'000;
constexpr int kMostRefusals = 3;  // a port that closes after the answer most likely has another key

}  // namespace

Diallers::~Diallers() {
  std::map<Id, std::unique_ptr<Dial>> gone;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    gone.swap(dials_);
  }
  for (auto& [id, d] : gone) {
    loop_.cancel(d->timer);
    hang_up(*d);
  }
}

TcpPort::DialId Diallers::dial(std::vector<std::string> addresses, const Greeting& greeting, int64_t deadline_ns,
                               TcpPort::Dialled done) {
  auto d = std::make_unique<Dial>();
  d->addresses = std::move(addresses);
  d->greeting = greeting;
  d->deadline = deadline_ns;
  d->done = std::move(done);
  d->retry_ns = kRetryNs;
  const std::lock_guard<std::mutex> hold(mutex_);
  const Id id = next_++;
  wait(id, *d, 0, &Diallers::begin);
  dials_[id] = std::move(d);
  return id;
}

void Diallers::cancel(TcpPort::DialId& dial) {
  std::unique_ptr<Dial> gone;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const auto it = dials_.find(dial);
    dial = 0;
    if (it == dials_.end()) return;
    gone = std::move(it->second);
    dials_.erase(it);
  }
  loop_.cancel(gone->timer);
  hang_up(*gone);
}

// The poller's steps all come through here.
void Diallers::with(Id id, void (Diallers::*step)(Id, Dial&)) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const auto it = dials_.find(id);
  if (it != dials_.end() && it->second->phase != Phase::done) (this->*step)(id, *it->second);
}

// On the poller, or before the dial is known: so cancelling the last timer waits for nothing.
void Diallers::wait(Id id, Dial& d, int64_t until, void (Diallers::*step)(Id, Dial&)) {
  loop_.cancel(d.timer);
  d.timer = loop_.at(until, [this, id, step] { with(id, step); });
}

void Diallers::hang_up(Dial& d) {
  loop_.remove(d.watch);
  if (d.fd >= 0) close(std::exchange(d.fd, -1));
}

// ------------------------------------------------------------------------------------------------------------- one try

void Diallers::begin(Id id, Dial& d) {
  if (now_ns() >= d.deadline) {
    if (!d.error) return silent(id, d);
    d.error.cause = Cause::timeout;  // after rounds: the last reason is better than none
    return finish(id, d);
  }
  if (d.addresses.empty()) return next_address(id, d, "there is no address to dial");
  TcpAddress address;
  if (!parse_address(d.addresses[d.at], address)) return next_address(id, d, "this is no address");
  d.fd = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (d.fd < 0) return next_address(id, d, std::strerror(errno));
  const int one = 1;
  setsockopt(d.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(d.fd, address.get(), address.length) != 0 && errno != EINPROGRESS)
    return next_address(id, d, std::strerror(errno));
  d.phase = Phase::connecting;
  d.have = 0;
  d.watch = loop_.add(d.fd, EPOLLOUT, [this, id](uint32_t) { with(id, &Diallers::go_on); });
  if (!d.watch) return next_address(id, d, std::strerror(errno));
  const int64_t now = now_ns(), others = static_cast<int64_t>(d.addresses.size() - d.at) - 1;
  const int64_t share = others > 0 ? std::min(kSilenceNs, (d.deadline - now) / (others + 1)) : d.deadline - now;
  wait(id, d, now + share, &Diallers::silent);
}

void Diallers::silent(Id id, Dial& d) {
  d.silent = true;
  next_address(id, d, d.phase == Phase::connecting ? "it did not answer in time" : "it accepted and said nothing more");
}

void Diallers::go_on(Id id, Dial& d) {
  if (d.phase == Phase::connecting && !connected(id, d)) return;
  if (d.phase == Phase::hello && !greet(id, d)) return;
  if (d.phase != Phase::proof || !receive(id, d, d.proof.data(), d.proof.size())) return;
  if (!equal(d.proof, make_proof(options_.key, d.acceptors, d.own, d.greeting)))
    return next_address(id, d, "it does not hold the key of this job");
  d.error = Error{};
  loop_.remove(d.watch);
  finish(id, d);
}

bool Diallers::connected(Id id, Dial& d) {
  int code = 0;
  socklen_t length = sizeof code;
  getsockopt(d.fd, SOL_SOCKET, SO_ERROR, &code, &length);
  if (code != 0) {
    next_address(id, d, std::strerror(code));
    return false;
  }
  d.phase = Phase::hello;
  loop_.change(d.watch, EPOLLIN);
  return true;
}

bool Diallers::greet(Id id, Dial& d) {
  if (!receive(id, d, d.hello.data(), d.hello.size())) return false;
  if (!read_hello(d.hello, d.acceptors)) {
    next_address(id, d, "it is no port of ringcomm, or of another version");
    return false;
  }
  d.own = fresh_challenge();
  const Answer answer = make_answer(options_.key, d.acceptors, d.own, d.greeting);
  if (send(d.fd, answer.data(), answer.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(answer.size())) {
    cut_off(id, d, std::strerror(errno));
    return false;
  }
  d.phase = Phase::proof;
  d.have = 0;
  return true;
}

// True: all bytes are there.
bool Diallers::receive(Id id, Dial& d, uint8_t* to, size_t bytes) {
  while (d.have < bytes) {
    const ssize_t n = recv(d.fd, to + d.have, bytes - d.have, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n <= 0) {
      cut_off(id, d, n == 0 ? "closed by the other side" : std::strerror(errno));
      return false;
    }
    d.have += static_cast<size_t>(n);
  }
  return true;
}

// ------------------------------------------------------------------------------------------------------------ failures

// A port that is flooded by strangers closes those who came first, which may be this one: once more, until the deadline.
void Diallers::cut_off(Id id, Dial& d, const char* why) {
  if (d.phase == Phase::proof && ++d.refusals >= kMostRefusals)
    return next_address(id, d,
                        std::string(why) + " during the handshake: does it belong to this job, with the same key?");
  const int64_t again = now_ns() + d.retry_ns;
  if (again >= d.deadline) return next_address(id, d, std::string(why) + " during the handshake");
  d.retry_ns = std::min(2 * d.retry_ns, kLongestRetryNs);
  hang_up(d);
  wait(id, d, again, &Diallers::begin);
}

void Diallers::next_address(Id id, Dial& d, const std::string& why) {
  hang_up(d);
  const std::string address = d.at < d.addresses.size() ? d.addresses[d.at] : "any address";
  const std::string others = d.addresses.size() > 1 ? ", the last of " + std::to_string(d.addresses.size()) : "";
  const bool late = now_ns() >= d.deadline;
  d.error.cause = late ? Cause::timeout : Cause::connection;
  std::snprintf(d.error.text, sizeof d.error.text, "ringcomm: cannot connect to %s%s: %s", address.c_str(),
                others.c_str(), why.c_str());
  d.refusals = 0;
  if (late) return finish(id, d);
  if (++d.at < d.addresses.size()) return wait(id, d, 0, &Diallers::begin);
  if (!d.silent) return finish(id, d);
  d.silent = false;  // whoever said nothing may only be stopped
  d.at = 0;
  wait(id, d, std::min(d.deadline, now_ns() + kLongestRetryNs), &Diallers::begin);
}

void Diallers::finish(Id id, Dial& d) {
  d.phase = Phase::done;
  loop_.cancel(d.timer);
  d.timer = loop_.at(0, [this, id] { deliver(id); });
}

// The dial stays known until `done` has returned, so that cancel() waits for it (by the timer).
void Diallers::deliver(Id id) {
  TcpPort::Dialled done;
  int fd;
  Error error;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const auto it = dials_.find(id);
    if (it == dials_.end()) return;
    done = std::move(it->second->done);
    fd = std::exchange(it->second->fd, -1);
    error = it->second->error;
  }
  done(fd, error);
  done = nullptr;
  const std::lock_guard<std::mutex> hold(mutex_);
  dials_.erase(id);
}

}  // namespace ringcomm
