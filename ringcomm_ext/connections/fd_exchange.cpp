#include "connections/fd_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/random_bytes.h"

namespace ringcomm {
namespace {

constexpr size_t kMostFds = 8;

socklen_t abstract_address(const std::string& name, sockaddr_un& a) {
  a = sockaddr_un{};
  a.sun_family = AF_UNIX;
  const size_t n = std::min(name.size(), sizeof(a.sun_path) - 1);
  std::memcpy(a.sun_path + 1, name.data(), n);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
}

void fail(Error& error, const std::string& address, const char* doing, int code) {
  const bool own = code == EMFILE || code == ENFILE || code == ENOMEM || code == ENOBUFS;  // no fault of the peer's
  error.cause = code == ETIMEDOUT ? Cause::timeout : own ? Cause::internal : Cause::peer_died;
  std::snprintf(error.text, sizeof error.text, "%s its local socket @%s: %s", doing, address.c_str(),
                std::strerror(code));
}

union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(kMostFds * sizeof(int))];
};

bool send_fds(int socket, const std::vector<int>& fds) {
  char ok = 1;
  iovec io{&ok, 1};
  Control control{};
  msghdr m{};
  m.msg_iov = &io, m.msg_iovlen = 1;
  m.msg_control = control.bytes, m.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  return sendmsg(socket, &m, MSG_NOSIGNAL) == 1;
}

// 0 or an errno.
int receive_fds(int socket, std::vector<int>& fds) {
  char ok = 0;
  iovec io{&ok, 1};
  Control control{};
  msghdr m{};
  m.msg_iov = &io, m.msg_iovlen = 1;
  m.msg_control = control.bytes, m.msg_controllen = sizeof control.bytes;
  const ssize_t n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
  if (n < 0) return errno;
  if (n == 0) return ECONNRESET;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const size_t at = fds.size();
    fds.resize(at + count);
    std::memcpy(fds.data() + at, CMSG_DATA(c), count * sizeof(int));
  }
  if (m.msg_flags & MSG_CTRUNC) return EMFILE;  // so the kernel says that no more fit into this process
  return 0;
}

}  // namespace

Nonce fresh_nonce() { return random_bytes<sizeof(Nonce)>(); }

std::string to_hex(const Nonce& nonce) {
  std::string text;
  for (uint8_t b : nonce) {
    text += "0123456789abcdef"[b >> 4];
    text += "0123456789abcdef"[b & 15];
  }
  return text;
}

bool from_hex(const std::string& text, Nonce& nonce) {
  if (text.size() != 2 * nonce.size()) return false;
  for (size_t i = 0; i < nonce.size(); ++i) {
    unsigned byte;
    if (std::sscanf(text.c_str() + 2 * i, "%2x", &byte) != 1) return false;
    nonce[i] = static_cast<uint8_t>(byte);
  }
  return true;
}

FdServer::~FdServer() {
  if (listener_ >= 0) close(listener_);
}

bool FdServer::listen(Error& error) {
  address_ = "ringcomm-" + to_hex(fresh_nonce());
  sockaddr_un a;
  const socklen_t length = abstract_address(address_, a);
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&a), length) != 0 ||
      ::listen(listener_, 4096) != 0) {
    fail(error, address_, "cannot listen on", errno);
    error.cause = Cause::internal;
    return false;
  }
  return true;
}

void FdServer::offer(const Nonce& nonce, std::vector<int> fds) {
  const std::lock_guard<std::mutex> hold(mutex_);
  offers_[nonce] = std::move(fds);
}

void FdServer::withdraw(const Nonce& nonce) {
  const std::lock_guard<std::mutex> hold(mutex_);
  offers_.erase(nonce);
}

int FdServer::accept() { return accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }

void FdServer::serve(int connection) {
  Nonce nonce;
  if (recv(connection, nonce.data(), nonce.size(), MSG_TRUNC) == static_cast<ssize_t>(nonce.size())) {
    const std::lock_guard<std::mutex> hold(mutex_);  // held while sending: withdraw() may be followed by close()
    const auto it = offers_.find(nonce);
    if (it != offers_.end()) send_fds(connection, it->second);
  }
  close(connection);
}

bool fetch_fds(const std::string& address, const Nonce& nonce, int64_t deadline_ns,
               const std::function<bool()>& interrupted, std::vector<int>& fds, Error& error) {
  sockaddr_un a;
  const socklen_t length = abstract_address(address, a);
  const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  // connect() waits where a stopped peer's queue of connections is full: for at most as long as this.
  const int64_t left = std::max<int64_t>(deadline_ns - now_ns(), 1'000'000);
  const timeval limit{static_cast<time_t>(std::min<int64_t>(left / 1'000'000'000, 1'000'000)),
                      static_cast<suseconds_t>(left % 1'000'000'000 / 1000)};
  if (s >= 0) setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (s < 0 || connect(s, reinterpret_cast<sockaddr*>(&a), length) != 0 ||
      send(s, nonce.data(), nonce.size(), MSG_NOSIGNAL) < 0) {
    fail(error, address, "cannot connect to", errno);
    if (s >= 0) close(s);
    return false;
  }
  pollfd p{s, POLLIN, 0};
  int code = ETIMEDOUT;
  while (true) {
    const int64_t left = deadline_ns - now_ns();
    if (left <= 0) break;
    const int n = poll(&p, 1, static_cast<int>(std::min<int64_t>(left / 1'000'000 + 1, 200)));
    if (n > 0) {
      code = receive_fds(s, fds);
      break;
    }
    if ((n < 0 && errno != EINTR) || (interrupted && interrupted())) {
      code = n < 0 ? errno : EINTR;
      break;
    }
  }
  close(s);
  if (code != 0) {
    fail(error, address, code == EMFILE ? "cannot take what comes from" : "no answer from", code);
    for (int fd : fds) close(fd);
    fds.clear();
  }
  return code == 0;
}

}  // namespace ringcomm
