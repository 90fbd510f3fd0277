// Sockets whose owner is gone while the kernel, or memory, still holds what was written. tcp_port.h (linger, settle) is the contract.
//
// Why: close() with unread acknowledgements in the socket sends a reset, and a reset throws away what has not reached the peer's kernel yet.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "connections/event_loop.h"
#include "connections/tcp_port.h"

namespace ringcomm {

// Whether the peer's kernel has all that was written to this socket.
bool reached_peer(int fd);

class Lingerers {
 public:
  Lingerers(EventLoop& loop, const TcpOptions& options) : loop_(loop), options_(options) {}
  ~Lingerers();

  void linger(int fd, std::string rest);
  bool settle(int64_t until_ns);
  uint64_t add_sender(std::function<bool()> delivered);
  void forget_sender(uint64_t id);

 private:
  struct Socket {
    std::string rest;
    size_t sent = 0;
    Watch watch;
    EventLoop::TimerId timer = 0;
  };
  void serve(uint64_t id);
  bool send_rest(Socket& s);
  void end(uint64_t id);
  bool all_delivered();

  EventLoop& loop_;
  const TcpOptions& options_;
  std::mutex mutex_;
  std::map<uint64_t, Socket> sockets_;
  std::map<uint64_t, std::function<bool()>> senders_;
  uint64_t next_ = 1;
};

}  // namespace ringcomm
