#include "connections/tcp_linger.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>
#include <vector>

namespace ringcomm {
namespace {

constexpr int64_t kNapNs = 1'000'000;  // between looks, at exit

// True: nothing more will come.
bool drain(int fd) {
  char waste[4096];
  while (true) {
    const ssize_t n = recv(fd, waste, sizeof waste, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

}  // namespace

bool reached_peer(int fd) {
  int unsent = 0;
  return ioctl(fd, SIOCOUTQ, &unsent) != 0 || unsent == 0;
}

Lingerers::~Lingerers() {
  std::map<uint64_t, Socket> gone;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    gone.swap(sockets_);
  }
  for (auto& [id, s] : gone) {
    const int fd = s.watch.fd;
    loop_.remove(s.watch);
    loop_.cancel(s.timer);
    close(fd);
  }
}

void Lingerers::linger(int fd, std::string rest) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const uint64_t id = next_++;
  Socket& s = sockets_[id];
  s.rest = std::move(rest);
  s.watch = loop_.add(fd, EPOLLIN | EPOLLOUT, [this, id](uint32_t) { serve(id); });
  if (!s.watch) {
    close(fd);
    sockets_.erase(id);
    return;
  }
  s.timer = loop_.at(now_ns() + options_.linger_ns, [this, id] {
    const std::lock_guard<std::mutex> hold(mutex_);
    end(id);
  });
}

// Under the lock, on the poller.
void Lingerers::end(uint64_t id) {
  const auto it = sockets_.find(id);
  if (it == sockets_.end()) return;
  const int fd = it->second.watch.fd;
  loop_.remove(it->second.watch);
  loop_.cancel(it->second.timer);
  sockets_.erase(it);
  close(fd);
}

void Lingerers::serve(uint64_t id) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const auto it = sockets_.find(id);
  if (it == sockets_.end()) return;
  if (drain(it->second.watch.fd) || !send_rest(it->second)) end(id);
}

// False: the socket is broken. When all is sent, the peer is told so and its end is waited for.
bool Lingerers::send_rest(Socket& s) {
  while (s.sent < s.rest.size()) {
    const ssize_t n = send(s.watch.fd, s.rest.data() + s.sent, s.rest.size() - s.sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    s.sent += static_cast<size_t>(n);
  }
  shutdown(s.watch.fd, SHUT_WR);
  loop_.change(s.watch, EPOLLIN);
  return true;
}

// -------------------------------------------------------------------------------------------------------------- at exit

uint64_t Lingerers::add_sender(std::function<bool()> delivered) {
  const std::lock_guard<std::mutex> hold(mutex_);
  senders_[next_] = std::move(delivered);
  return next_++;
}

void Lingerers::forget_sender(uint64_t id) {
  const std::lock_guard<std::mutex> hold(mutex_);
  senders_.erase(id);
}

bool Lingerers::all_delivered() {
  const std::lock_guard<std::mutex> hold(mutex_);
  return std::all_of(
             sockets_.begin(), sockets_.end(),
             [](const auto& s) { return s.second.sent == s.second.rest.size() && reached_peer(s.second.watch.fd); }) &&
         std::all_of(senders_.begin(), senders_.end(), [](const auto& s) { return s.second(); });
}

bool Lingerers::settle(int64_t until_ns) {
  while (!all_delivered()) {
    if (now_ns() >= until_ns) return false;
    const timespec nap{0, kNapNs};
    nanosleep(&nap, nullptr);
  }
  return true;
}

}  // namespace ringcomm
