#include "connections/tcp_receiver.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "connections/tcp_address.h"
#include "connections/tcp_linger.h"

namespace ringcomm {
namespace {

constexpr size_t kMovable = 256;  // what is moved for the sake of alignment alone

}  // namespace

TcpReceiver::TcpReceiver(TcpShared& shared, LateCounts& late, size_t capacity, int peer)
    : shared_(shared), late_(late), capacity_(capacity), peer_(peer) {}

// What was flushed is known to the writer, also of who leaves at once.
TcpReceiver::~TcpReceiver() {
  send_count();
  shared_.port.loop().remove(watch_);
  if (const int fd = fd_.load(); fd >= 0) close(fd);
}

// Attach-then-ring against raise-then-look, as with every message.
bool TcpReceiver::attach(int fd) {
  if (fd_.load() >= 0) return false;
  watch_ = shared_.port.loop().add(fd, EPOLLONESHOT, [this](uint32_t) {
    armed_.store(false, std::memory_order_seq_cst);
    shared_.own.ring();
  });
  if (!watch_) return false;
  fd_.store(fd, std::memory_order_seq_cst);
  shared_.own.ring();
  return true;
}

// --------------------------------------------------------------------------------------------------------------- reading

const char* TcpReceiver::peek(size_t bytes, uint32_t* tag) {
  if (!ready_) {
    if (failed() || !receive(bytes)) return nullptr;
    ready_ = true;
  }
  FrameHeader header;
  std::memcpy(&header, buffer_ + begin_, sizeof header);
  *tag = header.tag;
  return buffer_ + begin_ + sizeof header;
}

// True once the first frame is whole. `bytes`: what the caller expects of it, while its header is not there.
bool TcpReceiver::receive(size_t bytes) {
  const int fd = fd_.load(std::memory_order_seq_cst);
  if (fd < 0) return false;
  while (true) {
    size_t frame = sizeof(FrameHeader) + padded(std::min(bytes, capacity_));
    if (end_ - begin_ >= sizeof(FrameHeader)) {
      FrameHeader header;
      std::memcpy(&header, buffer_ + begin_, sizeof header);
      const size_t length = header.length & ~kAskCount;
      if (length > capacity_) return broke("it sent what is no message"), false;
      frame = sizeof header + padded(length);
      if (end_ - begin_ >= frame) return true;
    }
    if (!make_room(frame)) return false;
    const size_t missing = frame - (end_ - begin_);
    const size_t ask = is_large(frame) ? missing + kCacheLine : kSmall - kFront;
    const ssize_t n = recv(fd, buffer_ + end_, std::min(ask, size_ - end_), 0);
    if (n > 0) {
      end_ += static_cast<size_t>(n);
    } else if (n == 0) {
      return broke("closed by the other side"), false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return wake_sleepers_on_news(), false;
    } else if (errno != EINTR) {
      return broke(std::strerror(errno)), false;
    }
  }
}

// For a frame of `frame` bytes that begins at begin_ and some more behind it.
bool TcpReceiver::make_room(size_t frame) {
  const size_t have = end_ - begin_;
  if (kFront + frame > size_ && !grow()) return false;
  const bool fits = begin_ + frame <= size_ && end_ < size_;
  if (begin_ == kFront || (fits && !(is_large(frame) && have <= kMovable))) return true;
  std::memmove(buffer_ + kFront, buffer_ + begin_, have);
  begin_ = kFront, end_ = kFront + have;
  return true;
}

bool TcpReceiver::grow() {
  const size_t size = kFront + sizeof(FrameHeader) + padded(capacity_) + kSmall;
  if (!large_.take(size, shared_.budget, "the buffer of a connection over TCP", error_)) return false;
  std::memcpy(large_.data() + kFront, buffer_ + begin_, end_ - begin_);
  end_ = kFront + (end_ - begin_), begin_ = kFront;
  buffer_ = large_.data(), size_ = size;
  return true;
}

void TcpReceiver::release() {
  FrameHeader header;
  std::memcpy(&header, buffer_ + begin_, sizeof header);
  asked_ |= (header.length & kAskCount) != 0;
  begin_ += sizeof header + padded(header.length & ~kAskCount);
  if (begin_ == end_) begin_ = end_ = kFront;
  ready_ = false;
  ++released_;
}

// Only who is about to sleep needs the poller: a thread that looks again and again would but be disturbed by it.
void TcpReceiver::wake_sleepers_on_news() {
  if (shared_.own.sleeping.load(std::memory_order_seq_cst) == 0) return;
  if (!armed_.exchange(true, std::memory_order_seq_cst)) shared_.port.loop().change(watch_, EPOLLIN | EPOLLONESHOT);
}

// ---------------------------------------------------------------------------------------------------------------- counts

void TcpReceiver::flush() {
  if (released_ == flushed_.load(std::memory_order_relaxed)) return;
  flushed_.store(released_, std::memory_order_seq_cst);
  if (!asked_ && released_ - counted_.load(std::memory_order_relaxed) < window(shared_.group.layout.slots) / 2)
    return late_.note();
  asked_ = false;
  send_count();
  if (counted_.load() != released_) late_.note();  // the kernel had no room for it, or the poller is at one
}

bool TcpReceiver::count_late() {
  const uint32_t flushed = flushed_.load(std::memory_order_seq_cst);
  if (flushed == counted_.load(std::memory_order_seq_cst)) return false;
  if (flushed == seen_late_) send_count();
  seen_late_ = flushed;
  return true;
}

bool TcpReceiver::told() {
  const int fd = fd_.load();
  return fd < 0 || (counted_.load() == flushed_.load() && reached_peer(fd));
}

// As TcpLink::push: who finds the other at it leaves. A count that the kernel has no room for is owed still: the late look comes back for it.
void TcpReceiver::send_count() {
  const int fd = fd_.load(std::memory_order_relaxed);
  while (counted_.load() != flushed_.load(std::memory_order_seq_cst)) {
    if (counting_.exchange(true, std::memory_order_seq_cst)) return;
    const uint32_t flushed = flushed_.load(std::memory_order_seq_cst);
    if (count_left_ == 0) std::memcpy(count_, &flushed, count_left_ = sizeof flushed);
    const ssize_t n = send(fd, count_ + sizeof count_ - count_left_, count_left_, MSG_NOSIGNAL);
    const bool full = n < 0 && errno != EINTR;
    if (n > 0) count_left_ -= static_cast<size_t>(n);
    uint32_t counted;
    std::memcpy(&counted, count_, sizeof counted);
    if (count_left_ == 0) counted_.store(counted, std::memory_order_seq_cst);
    counting_.store(false, std::memory_order_seq_cst);
    if (full) return;
  }
}

// --------------------------------------------------------------------------------------------------------------- failing

void TcpReceiver::broke(const char* what) {
  broken_at_ = now_ns();
  reason_.cause = Cause::connection;
  reason_.rank = reason_.peer = peer_;
  std::snprintf(reason_.text, sizeof reason_.text, "ringcomm: the connection from rank %d at %s broke: %s",
                shared_.group.shown(peer_), peer_address(fd_.load()).c_str(), what);
}

bool TcpReceiver::failed() {
  if (!error_ && reason_ && now_ns() - broken_at_ >= shared_.group.grace_ns) error_ = reason_;
  return error_ || reason_;
}

}  // namespace ringcomm
