// What the poller thread does for wires: descriptors with handlers, and calls at a time. One per process.
//
// fd() is an epoll descriptor, to be put into another epoll set (EPOLLIN, level-triggered): it is readable whenever run_ready() has something to do,
// times included. Threads: run_ready() belongs to one thread, the poller; handlers and timed calls run in it, one at a time, with no lock held, and must
// not block. Everything else may be called from any thread, also from inside a handler.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/status.h"

namespace ringcomm {

// A descriptor in the loop. The descriptor stays the caller's: remove it, then close it.
struct Watch {
  int fd = -1;
  uint64_t id = 0;  // 0: none
  explicit operator bool() const { return id != 0; }
};

class EventLoop {
 public:
  using Handler = std::function<void(uint32_t events)>;  // EPOLLIN, ...; EPOLLERR and EPOLLHUP come unasked
  using TimerId = uint64_t;                              // 0: none

  static std::unique_ptr<EventLoop> open(Error& error);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  int fd() const { return epoll_; }

  // `events` as epoll takes them, EPOLLET and EPOLLONESHOT too. No watch if the system refuses (errno).
  Watch add(int fd, uint32_t events, Handler handler);
  // New events; arms again what EPOLLONESHOT has disarmed. One system call, no lock.
  bool change(const Watch& watch, uint32_t events);
  // Afterwards the handler is not called and, unless this is called from inside a handler, not running. The caller must hold no lock
  // that the handler takes. Resets `watch`; nothing happens for none.
  void remove(Watch& watch);

  // Calls once, at or soon after `when_ns` (now_ns() time; past times: at once).
  TimerId at(int64_t when_ns, std::function<void()> call);
  // As remove(): afterwards it will not be called and is not running.
  void cancel(TimerId& timer);

  // The poller: what is ready now. Never blocks.
  void run_ready();
  // In a forked child: closes its own descriptors and all that are in it, or the parent's peers would not see its end. Async-signal-safe.
  void close_in_child();
  // The same for one that epoll cannot watch, until keep_in_child().
  void close_in_child_too(int fd);
  void keep_in_child(int fd);

 private:
  // Descriptors, for close_in_child(): the lock may be held for ever there.
  struct Block {
    std::array<std::atomic<int>, 64> fds;
    std::atomic<Block*> next{nullptr};
    Block() {
      for (auto& fd : fds) fd.store(-1, std::memory_order_relaxed);
    }
  };
  struct Entry {
    std::shared_ptr<Handler> handler;
    std::atomic<int>* slot;
  };
  EventLoop() = default;
  std::atomic<int>* free_slot();
  void set_timer();
  void run_due(int64_t now);
  void await_end(std::unique_lock<std::mutex>& hold, uint64_t id);

  int epoll_ = -1, timer_ = -1;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::map<uint64_t, Entry> entries_;
  Block slots_;
  std::map<std::pair<int64_t, TimerId>, std::function<void()>> due_;  // by time
  std::map<TimerId, int64_t> when_;
  int64_t timer_set_to_ = INT64_MAX;
  uint64_t next_id_ = 1;
  uint64_t running_ = 0;  // whose handler or call runs now
  std::thread::id poller_;
};

}  // namespace ringcomm
