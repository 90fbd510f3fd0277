// How ranks on one node give each other file descriptors: an abstract Unix socket per process, so that no path is left behind and the reach is the
// network namespace. A peer asks for an offer by its nonce (128 random bits that only the group's store carries) and gets the descriptors.
// "Same node" is proved by this having worked, never by a host name.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/status.h"

namespace ringcomm {

using Nonce = std::array<uint8_t, 16>;
Nonce fresh_nonce();
std::string to_hex(const Nonce& nonce);
bool from_hex(const std::string& text, Nonce& nonce);

// The serving side. offer/withdraw: any thread. accept/serve: the poller thread only; neither blocks.
class FdServer {
 public:
  FdServer() = default;
  ~FdServer();
  bool listen(Error& error);
  int listener() const { return listener_; }
  const std::string& address() const { return address_; }  // without the leading zero byte

  void offer(const Nonce& nonce, std::vector<int> fds);  // the descriptors stay the caller's
  void withdraw(const Nonce& nonce);

  int accept();                // a new connection, or -1
  void serve(int connection);  // answers and closes it; what is no request is closed unanswered

 private:
  int listener_ = -1;
  std::string address_;
  std::mutex mutex_;
  std::map<Nonce, std::vector<int>> offers_;
};

// The asking side: blocks up to the deadline, or until `interrupted` (may be empty; asked now and then) says true. On
// success `fds` are the caller's to close.
bool fetch_fds(const std::string& address, const Nonce& nonce, int64_t deadline_ns,
               const std::function<bool()>& interrupted, std::vector<int>& fds, Error& error);

}  // namespace ringcomm
