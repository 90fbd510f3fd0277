// The TCP port of a process: listens, dials, and lets through only who holds the job's key. One port number for all addresses it is bound to.
//
//   acceptor -> dialler   magic, challenge A
//   dialler  -> acceptor  magic, greeting, challenge D, HMAC(key, "dial", A, D, greeting)
//   acceptor -> dialler   HMAC(key, "accept", A, D, greeting)
//
// Then the socket belongs to whoever expects the greeting's topic. Fresh challenges on both sides: nothing recorded can be played again. What is not
// such a handshake within a few seconds (strangers, port scans, garbage, half-open connections) is closed; there are never more than `most_guests` of
// them, the oldest goes first; the first is logged, the others are not. docs/tcp.md.
//
// Threads: any may call; `accept` and `done` run on the poller's (event_loop.h), with no lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "connections/event_loop.h"
#include "connections/fd_exchange.h"
#include "core/status.h"

namespace ringcomm {

inline constexpr uint32_t kTcpVersion = 1;

enum class Purpose : uint8_t { data = 1, control = 2 };

// What a dialler says it wants. 32 bytes on the wire, little-endian, in this order.
struct Greeting {
  Nonce topic{};  // a group's, or a process's: whatever both know and expect() was told
  Purpose purpose = Purpose::data;
  uint8_t kind = 0;      // data: 0 pair, 1 fan-out, 2 messages; control: free
  uint16_t channel = 0;  // data; control: free
  int32_t from = -1;     // data: rank of the writer in its group; control: free
  uint32_t version = kTcpVersion;
  uint32_t reserved = 0;
};

struct TcpOptions {
  std::vector<std::string> bind;         // numeric addresses, "10.0.0.1", "fe80::1%eth0"; empty: all there are
  int port_low = 0, port_high = 0;       // inclusive; 0: any
  std::string key;                       // the job's; empty is allowed and keeps nobody out
  int64_t handshake_ns = 5'000'000'000;  // a guest that is not through by then is shown out
  size_t most_guests = 128;              // at once, not through yet
  size_t most_parked = 256;              // through, but nobody expects their topic yet
  int64_t parked_ns = 60'000'000'000;
  int64_t linger_ns = 10'000'000'000;  // how long what was written before a group's end is still sent
};

class TcpPort {
 public:
  using Accept = std::function<void(const Greeting&, int fd)>;      // the descriptor is the callee's
  using Dialled = std::function<void(int fd, const Error& error)>;  // fd: the callee's, or -1 and the error
  using DialId = uint64_t;                                          // 0: none

  // Null and `error`, with the address or the range and errno's text. The loop must outlive the port.
  static std::unique_ptr<TcpPort> open(EventLoop& loop, const TcpOptions& options, Error& error);
  virtual ~TcpPort() = default;

  virtual int port() const = 0;
  virtual EventLoop& loop() = 0;
  virtual const TcpOptions& options() const = 0;

  // Sockets that greet with `topic` go to `accept`; those that came before, too (parked). Nonblocking, TCP_NODELAY, CLOEXEC.
  virtual void expect(const Nonce& topic, Accept accept) = 0;
  // Afterwards `accept` is not called and, unless this is called from inside it, not running: hold no lock that it takes.
  virtual void forget(const Nonce& topic) = 0;

  // Tries the addresses in order ("10.0.0.1:4711", "[fe80::1%eth0]:4711"), greets, and calls `done` once, never from inside dial(). A refusal goes on
  // to the next address at once, silence after a while where there are others. If all have failed, those that were silent get another round, until the
  // deadline; so does a socket that is closed during the handshake.
  // The error: Cause::connection (timeout where the deadline passed), text with the last address and errno's text.
  virtual DialId dial(std::vector<std::string> addresses, const Greeting& greeting, int64_t deadline_ns,
                      Dialled done) = 0;
  // As forget(): afterwards `done` will not be called and is not running.
  virtual void cancel(DialId& dial) = 0;

  // An orderly end of a socket whose owner is gone: sends `rest`, then closes without cutting off what the kernel still holds (a plain close() would,
  // where acknowledgements lie unread). Takes over the descriptor. At most options().linger_ns.
  virtual void linger(int fd, std::string rest) = 0;
  // Blocks until what lingers has reached the peers' kernels, or the time: before the process exits. True: all has.
  virtual bool settle(int64_t until_ns) = 0;
  // What settle() asks besides, of senders that are still there: quick. Not running after it was forgotten.
  virtual uint64_t add_sender(std::function<bool()> delivered) = 0;
  virtual void forget_sender(uint64_t id) = 0;
};

}  // namespace ringcomm
