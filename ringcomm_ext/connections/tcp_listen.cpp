// Finding one port number that is free on all addresses.
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "connections/tcp_address.h"
#include "connections/tcp_reception.h"

namespace ringcomm {
namespace {

constexpr int kTries = 64;  // for a number the system chose on the first address and that is free on the others
constexpr int kBacklog = 4096;

std::vector<std::string> hosts_of(const TcpOptions& options) {
  return options.bind.empty() ? std::vector<std::string>{"0.0.0.0", "::"} : options.bind;
}

// -1: see `code`.
int listen_at(const TcpAddress& address, int& code) {
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int one = 1;
  if (fd >= 0) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one,
               sizeof one);  // connections of an earlier job may linger in TIME_WAIT
    if (address.family() == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    if (bind(fd, address.get(), address.length) == 0 && ::listen(fd, kBacklog) == 0) return fd;
  }
  code = errno;
  if (fd >= 0) close(fd);
  return -1;
}

int port_of(int fd) {
  TcpAddress a;
  a.length = sizeof a.storage;
  getsockname(fd, a.get(), &a.length);
  return a.port();
}

// "All addresses" are those of the families that the kernel has.
bool may_lack(const TcpOptions& options, int code) {
  return options.bind.empty() && (code == EAFNOSUPPORT || code == EADDRNOTAVAIL);
}

}  // namespace

bool Reception::listen_on(int port, std::vector<int>& sockets, std::string& failed_at, int& code) const {
  for (const std::string& host : hosts_of(options_)) {
    TcpAddress address;
    failed_at = host;
    code = EINVAL;
    int fd = -1;
    if (parse_host(host, address)) {
      address.set_port(port);
      failed_at = to_text(address);
      fd = listen_at(address, code);
      if (fd < 0 && may_lack(options_, code)) continue;
    }
    if (fd < 0) {
      for (int s : sockets) close(s);
      sockets.clear();
      return false;
    }
    sockets.push_back(fd);
    if (port == 0) port = port_of(fd);
  }
  return !sockets.empty();
}

bool Reception::listen(Error& error) {
  const int low = options_.port_low, high = std::max(options_.port_high, low);
  const int numbers = low == 0 ? kTries : high - low + 1;
  // Ranks of a node share the range: who starts where its pid says meets the others seldom.
  const int first = low == 0 ? 0 : getpid() % numbers;
  std::string failed_at;
  int code = 0;
  std::vector<int> sockets;
  for (int i = 0; i < numbers; ++i)
    if (listen_on(low == 0 ? 0 : low + (first + i) % numbers, sockets, failed_at, code) ||
        (code != EADDRINUSE && code != EACCES))
      break;
  if (sockets.empty()) {
    error.cause = Cause::connection;
    const std::string range = low == 0 ? "any port" : "ports " + std::to_string(low) + " to " + std::to_string(high);
    std::snprintf(error.text, sizeof error.text, "ringcomm: cannot listen on %s (%s allowed): %s", failed_at.c_str(),
                  range.c_str(), std::strerror(code));
    return false;
  }
  port_ = port_of(sockets.front());
  watch_listeners(sockets);
  return true;
}

void Reception::watch_listeners(const std::vector<int>& sockets) {
  const std::lock_guard<std::mutex> hold(mutex_);
  for (int fd : sockets) listeners_.push_back(loop_.add(fd, EPOLLIN, [this, fd](uint32_t) { welcome(fd); }));
}

}  // namespace ringcomm
