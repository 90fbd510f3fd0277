#include "connections/tcp_address.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <charconv>
#include <cstring>

namespace ringcomm {
namespace {

bool number(const std::string& text, unsigned most, unsigned& value) {
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stopped == end && value <= most;
}

sockaddr_in& v4(TcpAddress& a) { return reinterpret_cast<sockaddr_in&>(a.storage); }
sockaddr_in6& v6(TcpAddress& a) { return reinterpret_cast<sockaddr_in6&>(a.storage); }
const sockaddr_in& v4(const TcpAddress& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
const sockaddr_in6& v6(const TcpAddress& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }

}  // namespace

int TcpAddress::port() const { return ntohs(family() == AF_INET6 ? v6(*this).sin6_port : v4(*this).sin_port); }

void TcpAddress::set_port(int port) {
  (family() == AF_INET6 ? v6(*this).sin6_port : v4(*this).sin_port) = htons(static_cast<uint16_t>(port));
}

bool parse_host(const std::string& host, TcpAddress& address) {
  address = {};
  if (inet_pton(AF_INET, host.c_str(), &v4(address).sin_addr) == 1) {
    address.storage.ss_family = AF_INET;
    address.length = sizeof(sockaddr_in);
    return true;
  }
  const size_t scope = host.find('%');
  if (inet_pton(AF_INET6, host.substr(0, scope).c_str(), &v6(address).sin6_addr) != 1) return false;
  address.storage.ss_family = AF_INET6;
  address.length = sizeof(sockaddr_in6);
  if (scope == std::string::npos) return true;
  const std::string interface = host.substr(scope + 1);
  unsigned index = if_nametoindex(interface.c_str());
  if (index == 0 && !number(interface, UINT32_MAX, index)) return false;
  v6(address).sin6_scope_id = index;
  return index != 0;
}

bool parse_address(const std::string& text, TcpAddress& address) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  unsigned port = 0;
  if (!number(text.substr(colon + 1), 65535, port) || !parse_host(host, address)) return false;
  if (bracketed != (address.family() == AF_INET6)) return false;
  address.set_port(static_cast<int>(port));
  return true;
}

std::string to_text(const TcpAddress& address) {
  char host[INET6_ADDRSTRLEN] = "?";
  const std::string port = ":" + std::to_string(address.port());
  if (address.family() == AF_INET) {
    inet_ntop(AF_INET, &v4(address).sin_addr, host, sizeof host);
    return host + port;
  }
  inet_ntop(AF_INET6, &v6(address).sin6_addr, host, sizeof host);
  char interface[IF_NAMESIZE] = "";
  const unsigned scope = v6(address).sin6_scope_id;
  std::string text = std::string("[") + host;
  if (scope != 0) text += std::string("%") + (if_indextoname(scope, interface) ? interface : std::to_string(scope));
  return text + "]" + port;
}

std::string peer_address(int fd) {
  TcpAddress a;
  a.length = sizeof a.storage;
  return getpeername(fd, a.get(), &a.length) == 0 ? to_text(a) : "?";
}

}  // namespace ringcomm
