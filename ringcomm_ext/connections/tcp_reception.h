// The accepting half of a TcpPort: listeners, guests (accepted, not through the handshake yet), and who waits for whose topic. tcp_port.h is the contract.
//
// Threads: guests are served by the poller; everything is under one lock, which is never held while an `accept` runs.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "connections/event_loop.h"
#include "connections/tcp_address.h"
#include "connections/tcp_handshake.h"
#include "connections/tcp_port.h"
#include "core/log.h"

namespace ringcomm {

class Reception {
 public:
  Reception(EventLoop& loop, const TcpOptions& options) : loop_(loop), options_(options) {}
  ~Reception();

  // One port number on all addresses.
  bool listen(Error& error);
  int port() const { return port_; }
  void expect(const Nonce& topic, TcpPort::Accept accept);
  void forget(const Nonce& topic);

 private:
  struct Guest {
    TcpAddress address;
    Watch watch;
    EventLoop::TimerId timer = 0;
    Challenge challenge;
    Answer answer;
    size_t have = 0;
  };
  using Arrival = std::pair<Greeting, int>;
  struct Parked {
    Arrival arrival;
    EventLoop::TimerId timer = 0;
  };
  struct Expected {
    TcpPort::Accept accept;
    std::deque<Arrival> arrivals;
    EventLoop::TimerId call = 0;  // that hands them over
  };

  bool listen_on(int port, std::vector<int>& sockets, std::string& failed_at, int& code) const;
  void watch_listeners(const std::vector<int>& sockets);
  void welcome(int listener);
  void receive(int fd, const TcpAddress& from);
  void pause();
  void hear(uint64_t id);
  void admit(uint64_t id, const Greeting& greeting, const Challenge& diallers);
  void turn_away(uint64_t id, const char* why, LogLevel level = LogLevel::warn);
  void park(const Arrival& arrival);
  void unpark(uint64_t id, const char* why);
  void hand_over(const Nonce& topic);
  void schedule(const Nonce& topic, Expected& expected);
  void tell(const std::string& from, const char* why, LogLevel level = LogLevel::warn);

  EventLoop& loop_;
  const TcpOptions& options_;
  int port_ = 0;
  std::vector<Watch> listeners_;
  std::mutex mutex_;
  EventLoop::TimerId resume_ = 0;
  std::map<uint64_t, Guest> guests_;  // oldest first
  std::map<uint64_t, Parked> parked_;
  std::map<Nonce, Expected> expected_;
  uint64_t next_ = 1;
  bool told_[2] = {};  // by level
};

}  // namespace ringcomm
