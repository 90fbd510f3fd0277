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
#include <cstddef>
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

namespace {

// Whether it is a TCP socket, and `length` says how much the kernel tells of it.
bool look(int fd, tcp_info& info, socklen_t& length) {
  info = {}, length = sizeof info;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
}

}  // namespace

int64_t ControlLink::unheard_ns(bool& asked) const {
  asked = false;
  const std::lock_guard<std::mutex> hold(mutex_);
  tcp_info info;
  socklen_t length;
  if (fd_ < 0 || !look(fd_, info, length)) return 0;
  asked = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
  return int64_t{std::min(info.tcpi_last_data_recv, info.tcpi_last_ack_recv)} * 1'000'000;
}

// What lies there counts, as before any end.
void ControlLink::give_up() {
  int code;
  if (fd_ < 0) return;
  read_all(code);
  take_frames();
  end(ETIMEDOUT);
}

// No user time-out, and more probes than are ever waited for: but where the kernel does not say when it last heard anything, as an emulator (qemu's user mode
// gives 4 bytes of TCP_INFO), its own time-outs have to do, with all that is wrong about them.
void ask_for_life(int fd, int every_s) {
  tcp_info info;
  socklen_t length;
  const bool silent = look(fd, info, length) && length < offsetof(tcp_info, tcpi_last_ack_recv) + sizeof(uint32_t);
  const int on = 1, probes = silent ? 2 : 100;
  const unsigned patience = silent ? static_cast<unsigned>(2 * every_s * 1000 - 600) : 0;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every_s, sizeof every_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
}

}  // namespace ringcomm
