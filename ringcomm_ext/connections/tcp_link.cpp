#include "connections/tcp_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "connections/tcp_address.h"
#include "connections/tcp_linger.h"

namespace ringcomm {
namespace {

constexpr char kZeros[8] = {};

}  // namespace

TcpLink::TcpLink(TcpShared& shared, const Outbox& outbox, Greeting greeting, int peer)
    : shared_(shared), outbox_(outbox), greeting_(greeting), peer_(peer) {}

TcpLink::~TcpLink() {
  if (registered_ == 0) return;  // never dialled
  TcpPort& port = shared_.port;
  port.cancel(dial_id_);
  port.forget_sender(registered_);
  port.loop().remove(watch_);
  const int fd = fd_.load();
  if (fd < 0) return;
  if (!broken()) read_counts();
  if (broken() || counted_ == outbox_.published.load() || owes_lent())
    close(fd);
  else
    port.linger(fd, rest());
}

bool TcpLink::owes_lent() const {
  for (uint64_t m = taken_.load(); m != outbox_.published.load(); ++m)
    if (outbox_.at(m).body != nullptr) return true;
  return false;
}

// The reader must not take what the caller writes there next for what was lent; a frame that is cut off is not shown to it.
void TcpLink::take_back() {
  while (sending_.exchange(true, std::memory_order_seq_cst))
    std::this_thread::yield();  // the poller, in one call of the kernel
  if (owes_lent()) {
    fail("given up in the midst of a message");
    if (const int fd = fd_.load(); fd >= 0) shutdown(fd, SHUT_RDWR);
  }
  sending_.store(false, std::memory_order_seq_cst);
  push();
}

// What the kernel has not taken: a copy, because the slots go away.
std::string TcpLink::rest() const {
  std::string all;
  for (uint64_t m = taken_.load(); m != outbox_.published.load(); ++m) {
    const Outbox::Entry& e = outbox_.at(m);
    all.append(e.head, e.head_bytes);
  }
  return all.substr(std::min(all.size(), done_.load()));
}

// -------------------------------------------------------------------------------------------------------------- dialling

// Channels take the rails by turns; if one leads nowhere the others are tried.
std::vector<std::string> TcpLink::addresses() const {
  const WireGroup& group = shared_.group;
  std::vector<std::string> all = group.peers[static_cast<size_t>(peer_)];
  const int rails = group.rails.empty() ? 1 : group.rails[static_cast<size_t>(peer_)];
  if (rails > 1) std::rotate(all.begin(), all.begin() + greeting_.channel % rails, all.begin() + rails);
  return all;
}

void TcpLink::dial() {
  TcpPort& port = shared_.port;
  registered_ = port.add_sender([this] { return delivered(); });
  dial_id_ = port.dial(addresses(), greeting_, now_ns() + shared_.group.dial_ns,
                       [this](int fd, const Error& error) { on_socket(fd, error); });
}

bool TcpLink::delivered() const {
  const int fd = fd_.load();
  return broken() || fd < 0 || (taken_.load() == outbox_.published.load() && reached_peer(fd));
}

void TcpLink::on_socket(int fd, const Error& error) {
  if (fd < 0) return fail(error);
  address_ = peer_address(fd);
  watch_ = shared_.port.loop().add(fd, EPOLLONESHOT, [this](uint32_t) { on_event(); });
  fd_.store(fd, std::memory_order_seq_cst);
  if (!watch_) return fail("cannot be watched");
  shared_.own.ring();
}

void TcpLink::on_event() {
  armed_.store(0, std::memory_order_seq_cst);
  blocked_.store(false, std::memory_order_seq_cst);
  push();
  shared_.own.ring();
}

// Both threads may arm at once, each for its own reason, and the last would win: so each takes over what the other has said, and looks once more.
void TcpLink::arm(uint32_t events) {
  uint32_t all = events | armed_.fetch_or(events, std::memory_order_seq_cst);
  while (true) {
    shared_.port.loop().change(watch_, all | EPOLLONESHOT);
    const uint32_t now = armed_.load(std::memory_order_seq_cst);
    if ((now & ~all) == 0) return;
    all |= now;
  }
}

void TcpLink::wake_sleepers_on_news() {
  if (fd_.load(std::memory_order_seq_cst) < 0 || broken()) return;
  if (shared_.own.sleeping.load(std::memory_order_seq_cst) == 0) return;
  if ((armed_.load(std::memory_order_seq_cst) & EPOLLIN) == 0) arm(EPOLLIN);
}

// --------------------------------------------------------------------------------------------------------------- sending

// Publish-then-look (the caller, before this) against leave-then-look (the loop): whoever leaves last sees all that was published.
void TcpLink::push() {
  const int fd = fd_.load(std::memory_order_seq_cst);
  do {
    if (sending_.exchange(true, std::memory_order_seq_cst)) return;
    if (!broken()) send_all(fd);
    sending_.store(false, std::memory_order_seq_cst);
  } while (taken_.load() != outbox_.published.load(std::memory_order_seq_cst) && !blocked_.load() && !broken());
}

void TcpLink::send_all(int fd) {
  uint64_t next = taken_.load(std::memory_order_relaxed);
  size_t done = done_.load(std::memory_order_relaxed);
  while (next != outbox_.published.load(std::memory_order_seq_cst)) {
    const Outbox::Entry& entry = outbox_.at(next);
    const ssize_t n = send_some(fd, entry);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return fail(std::strerror(errno));
    if (n > 0) done += static_cast<size_t>(n);
    if (done < entry.bytes()) {
      done_.store(done, std::memory_order_relaxed);
      blocked_.store(true, std::memory_order_seq_cst);
      return arm(EPOLLOUT);
    }
    done_.store(done = 0, std::memory_order_relaxed);
    taken_.store(++next, std::memory_order_seq_cst);
  }
}

// The small ones are one send() of one piece.
ssize_t TcpLink::send_some(int fd, const Outbox::Entry& e) const {
  const size_t done = done_.load(std::memory_order_relaxed);
  if (e.body_bytes == 0) return send(fd, e.head + done, e.head_bytes - done, MSG_NOSIGNAL);
  iovec parts[3];
  int count = 0;
  size_t skip = done;
  const auto add = [&](const char* data, size_t bytes) {
    if (skip < bytes) parts[count++] = {const_cast<char*>(data + skip), bytes - skip};
    skip -= std::min(skip, bytes);
  };
  add(e.head, e.head_bytes);
  add(e.body, e.body_bytes);
  add(kZeros, padded(e.body_bytes) - e.body_bytes);
  msghdr m{};
  m.msg_iov = parts, m.msg_iovlen = static_cast<size_t>(count);
  return sendmsg(fd, &m, MSG_NOSIGNAL);
}

// ---------------------------------------------------------------------------------------------------------------- counts

void TcpLink::read_counts() {
  const int fd = fd_.load(std::memory_order_acquire);
  if (fd < 0 || broken()) return;
  while (true) {
    char data[256];
    std::memcpy(data, count_, count_bytes_);
    const ssize_t n = recv(fd, data + count_bytes_, sizeof data - count_bytes_, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return fail(n == 0 ? "closed by the other side" : std::strerror(errno));
    const size_t have = count_bytes_ + static_cast<size_t>(n), whole = have / 4 * 4;
    if (whole > 0) {
      uint32_t last;
      std::memcpy(&last, data + whole - 4, 4);
      counted_ += last - static_cast<uint32_t>(counted_);
    }
    std::memcpy(count_, data + whole, count_bytes_ = have - whole);
    if (have < sizeof data) return;
  }
}

// --------------------------------------------------------------------------------------------------------------- failing

void TcpLink::fail(const char* what) {
  Error reason;
  reason.cause = Cause::connection;
  const bool connected = fd_.load(std::memory_order_seq_cst) >= 0;  // else the poller may be writing the address
  std::snprintf(reason.text, sizeof reason.text, "ringcomm: the connection to rank %d at %s broke: %s",
                shared_.group.shown(peer_), connected ? address_.c_str() : "an address that is still being dialled",
                what);
  fail(reason);
}

// The first reason counts.
void TcpLink::fail(const Error& reason) {
  int whole = kWhole;
  if (!broken_.compare_exchange_strong(whole, kBreaking)) return;
  reason_ = reason;
  reason_.rank = reason_.peer = peer_;
  broken_at_ = now_ns();
  broken_.store(kBroken, std::memory_order_seq_cst);
  shared_.own.ring();
}

bool TcpLink::lost(Error& error) const {
  if (!broken() || now_ns() - broken_at_ < shared_.group.grace_ns) return false;
  error = reason_;
  return true;
}

}  // namespace ringcomm
