// One control socket: frames to and from one process of another node, in order. It is fed by a connected, authenticated, nonblocking stream socket and
// knows nothing of what the frames mean.
//
// Threads: send() from any, never blocks: what the kernel does not take is kept and sent by the poller. The handlers run on the poller's thread, with no
// lock held. `ended` comes once, when the other end is gone or has sent what is no frame; after it nothing comes any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "connections/event_loop.h"

namespace ringcomm {

enum class FrameKind : uint32_t;

class ControlLink : public std::enable_shared_from_this<ControlLink> {
 public:
  using OnFrame = std::function<void(FrameKind kind, const std::string& body)>;
  using OnEnd = std::function<void(int code)>;  // errno, or 0: closed by the other end

  // Takes over the socket. Frames may come before start() returns. Null where the system refuses (errno).
  static std::shared_ptr<ControlLink> start(EventLoop& loop, int fd, OnFrame frame, OnEnd ended);
  ~ControlLink();  // closes

  void send(FrameKind kind, const void* body, size_t bytes);
  template <typename T>
  void send(FrameKind kind, const T& body) {
    send(kind, &body, sizeof body);
  }
  // How long nothing, not even an acknowledgement, has come from the other end's kernel; `asked`: one is due, for data or a keepalive. 0 after the end.
  int64_t unheard_ns(bool& asked) const;
  // It is silent: ends it as the kernel's own time-out would. The poller.
  void give_up();
  // All that was sent is with the other end's kernel, or there is no other end.
  bool delivered() const;

 private:
  ControlLink(EventLoop& loop, int fd, OnFrame frame, OnEnd ended)
      : loop_(loop), fd_(fd), on_frame_(std::move(frame)), on_end_(std::move(ended)) {}
  void ready(uint32_t events);
  bool read_all(int& code);
  bool take_frames();
  int flush();  // errno; with the lock
  void end(int code);

  EventLoop& loop_;
  mutable std::mutex mutex_;
  int fd_;  // -1 after the end
  Watch watch_;
  std::string out_;  // what the kernel has not taken
  std::string in_;   // the poller's: an incomplete frame
  const OnFrame on_frame_;
  const OnEnd on_end_;
};

// Has the kernel ask an idle peer's every `every_s` seconds. A stopped process answers too: its kernel does. Who is silent is for ControlPlane to say: the
// kernel's own time-outs count the time in which this machine did not run as the peer's silence, and a window that stays shut as death.
void ask_for_life(int fd, int every_s);

}  // namespace ringcomm
