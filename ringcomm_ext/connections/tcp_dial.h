// The dialling half of a TcpPort. tcp_port.h is the contract.
//
// Threads: dials are driven by the poller; everything is under one lock, which is never held while a `done` runs.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "connections/event_loop.h"
#include "connections/tcp_address.h"
#include "connections/tcp_handshake.h"
#include "connections/tcp_port.h"

namespace ringcomm {

class Diallers {
 public:
  Diallers(EventLoop& loop, const TcpOptions& options) : loop_(loop), options_(options) {}
  ~Diallers();

  TcpPort::DialId dial(std::vector<std::string> addresses, const Greeting& greeting, int64_t deadline_ns,
                       TcpPort::Dialled done);
  void cancel(TcpPort::DialId& dial);

 private:
  enum class Phase { connecting, hello, proof, done };
  struct Dial {
    std::vector<std::string> addresses;
    size_t at = 0;  // the address being tried
    Greeting greeting;
    int64_t deadline;
    TcpPort::Dialled done;
    Phase phase = Phase::connecting;
    int fd = -1;  // once done: for the caller
    Watch watch;
    EventLoop::TimerId timer = 0;
    bool silent = false;  // some address was, in this round
    size_t have = 0;      // of the hello or the proof
    Hello hello;
    Challenge acceptors, own;
    Digest proof;
    int refusals = 0;
    int64_t retry_ns;
    Error error;
  };
  using Id = TcpPort::DialId;

  void with(Id id, void (Diallers::*step)(Id, Dial&));
  void begin(Id id, Dial& d);
  void go_on(Id id, Dial& d);
  void silent(Id id, Dial& d);
  bool receive(Id id, Dial& d, uint8_t* to, size_t bytes);
  bool connected(Id id, Dial& d);
  bool greet(Id id, Dial& d);
  void next_address(Id id, Dial& d, const std::string& why);
  void cut_off(Id id, Dial& d, const char* why);
  void finish(Id id, Dial& d);
  void wait(Id id, Dial& d, int64_t until, void (Diallers::*step)(Id, Dial&));
  void hang_up(Dial& d);
  void deliver(Id id);

  EventLoop& loop_;
  const TcpOptions& options_;
  std::mutex mutex_;
  std::map<Id, std::unique_ptr<Dial>> dials_;
  Id next_ = 1;
};

}  // namespace ringcomm
