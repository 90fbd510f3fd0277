#include "engine/control_link.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/control_frames.h"

namespace ringcomm {

std::shared_ptr<ControlLink> ControlLink::start(EventLoop& loop, int fd, OnFrame frame, OnEnd ended) {
  std::shared_ptr<ControlLink> link(new ControlLink(loop, fd, std::move(frame), std::move(ended)));
  const std::weak_ptr<ControlLink> weak = link;
  const std::lock_guard<std::mutex> hold(link->mutex_);  // the handler finds watch_ set
  link->watch_ = loop.add(fd, EPOLLIN, [weak](uint32_t events) {
    if (const auto self = weak.lock()) self->ready(events);
  });
  return link->watch_ ? link : nullptr;
}

ControlLink::~ControlLink() {
  loop_.remove(watch_);
  if (fd_ >= 0) close(fd_);
}

void ControlLink::send(FrameKind kind, const void* body, size_t bytes) {
  const FrameHead head{static_cast<uint32_t>(bytes), kind};
  const std::lock_guard<std::mutex> hold(mutex_);
  if (fd_ < 0) return;
  const bool waiting = !out_.empty();
  out_.append(reinterpret_cast<const char*>(&head), sizeof head);
  out_.append(static_cast<const char*>(body), bytes);
  if (waiting) return;
  flush();  // that it is broken is for the poller to find
  if (!out_.empty()) loop_.change(watch_, EPOLLIN | EPOLLOUT);
}

int ControlLink::flush() {
  size_t done = 0;
  int code = 0;
  while (done < out_.size() && code == 0) {
    const ssize_t n = ::send(fd_, out_.data() + done, out_.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0)
      done += static_cast<size_t>(n);
    else if (errno != EINTR)
      code = errno;
  }
  out_.erase(0, done);
  return code;
}

bool ControlLink::delivered() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (fd_ < 0) return true;
  int left = 0;
  return out_.empty() && (ioctl(fd_, SIOCOUTQ, &left) != 0 || left == 0);
}

void ControlLink::ready(uint32_t events) {
  if (events & EPOLLOUT) {
    const std::lock_guard<std::mutex> hold(mutex_);
    if (fd_ < 0) return;
    flush();
    if (out_.empty()) loop_.change(watch_, EPOLLIN);
  }
  // What lies there is read before the end counts: it may say that the peer left in order.
  if (!(events & (EPOLLIN | EPOLLERR | EPOLLHUP))) return;
  int code = 0;
  const bool open = read_all(code);
  if (!take_frames()) return end(EPROTO);
  if (!open) end(code);
}

// False at the end, with errno or 0.
bool ControlLink::read_all(int& code) {
  char buffer[16 << 10];
  while (true) {
    const ssize_t n = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) {
      in_.append(buffer, static_cast<size_t>(n));
      if (in_.size() > 2 * size_t{kMostFrameBytes}) return true;  // level-triggered: the rest comes with the next look
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    code = n == 0 ? 0 : errno;
    return false;
  }
}

bool ControlLink::take_frames() {
  size_t at = 0;
  FrameHead head;
  while (in_.size() - at >= sizeof head) {
    std::memcpy(&head, in_.data() + at, sizeof head);
    if (head.bytes > kMostFrameBytes) return false;
    if (in_.size() - at - sizeof head < head.bytes) break;
    on_frame_(head.kind, in_.substr(at + sizeof head, head.bytes));
    at += sizeof head + head.bytes;
  }
  in_.erase(0, at);
  return true;
}

void ControlLink::end(int code) {
  Watch watch;
  int fd;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    if (fd_ < 0) return;
    watch = std::exchange(watch_, Watch{});
    fd = std::exchange(fd_, -1);
    out_.clear();
  }
  loop_.remove(watch);
  close(fd);
  on_end_(code);
}

// Keepalive asks an idle peer's kernel after a third of the time, and again after each further third; the user time-out says how long an unanswered
// question, or unacknowledged data, is put up with. For 3 s: asked after 1 s of silence, given up at the second question without an answer, or when what
// was sent is not acknowledged for 1.4 s, which counts from the first retransmission.
void watch_for_silence(int fd, int64_t dead_after_ns) {
  const int third = std::max(1, static_cast<int>(dead_after_ns / 3'000'000'000));
  const int on = 1, probes = 2;
  const unsigned patience = static_cast<unsigned>(2 * third * 1000 - 600);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &third, sizeof third);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &third, sizeof third);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
}

}  // namespace ringcomm
