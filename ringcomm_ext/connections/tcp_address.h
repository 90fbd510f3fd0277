// Numeric addresses with ports, as cards and logs carry them: "10.0.0.1:4711", "[fe80::1%eth0]:4711". No names: nothing here asks a resolver.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

namespace ringcomm {

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  int port() const;
  void set_port(int port);
};

// "10.0.0.1" or "fe80::1%eth0" (interface by name or number). False: it is no such thing, or there is no such interface.
bool parse_host(const std::string& host, TcpAddress& address);
bool parse_address(const std::string& text, TcpAddress& address);
std::string to_text(const TcpAddress& address);
// Of the other end of a socket; "?" where it is gone.
std::string peer_address(int fd);

}  // namespace ringcomm
