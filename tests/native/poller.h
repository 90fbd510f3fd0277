// An event loop with the thread that serves it, as the engine's poller does: its descriptor is nested in another epoll set.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "check.h"
#include "connections/event_loop.h"

namespace ringcomm::test {

class Poller {
 public:
  Poller() {
    Error error;
    loop_ = EventLoop::open(error);
    if (!loop_) fail("an event loop", 0, error.text);
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    stop_ = eventfd(0, EFD_CLOEXEC);
    for (int fd : {loop_->fd(), stop_}) {
      epoll_event e{};
      e.events = EPOLLIN;
      e.data.fd = fd;
      CHECK_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e), 0);
    }
    thread_ = std::thread([this] { run(); });
  }
  ~Poller() {
    stop();
    close(epoll_), close(stop_);
  }
  void stop() {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    CHECK(write(stop_, &one, sizeof one) == sizeof one);
    thread_.join();
  }
  EventLoop& loop() { return *loop_; }

 private:
  void run() {
    while (true) {
      epoll_event e{};
      if (epoll_wait(epoll_, &e, 1, -1) < 1) continue;
      if (e.data.fd == stop_) return;
      loop_->run_ready();
    }
  }
  std::unique_ptr<EventLoop> loop_;
  int epoll_ = -1, stop_ = -1;
  std::thread thread_;
};

}  // namespace ringcomm::test
