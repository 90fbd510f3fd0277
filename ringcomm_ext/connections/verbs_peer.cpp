#include "connections/verbs_peer.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "connections/tcp_address.h"

namespace ringcomm {
namespace {

constexpr int64_t kForTheReasonNs = 500'000'000;  // guessed: long against what it takes the other end to tell all

}  // namespace

bool Breakage::set(const Error& reason, int peer, bool consequence) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const bool broken = broken_.load(std::memory_order_relaxed);
  if (broken && (consequence || !consequence_)) return false;
  reason_ = reason;
  reason_.rank = reason_.peer = peer;
  consequence_ = consequence;
  if (broken) return false;
  at_ns_ = now_ns();
  broken_.store(true, std::memory_order_seq_cst);
  return true;
}

bool Breakage::lost(int64_t grace_ns, Error& error) const {
  if (!*this) return false;
  const std::lock_guard<std::mutex> hold(mutex_);
  const int64_t wait_ns = grace_ns + (consequence_ ? kForTheReasonNs : 0);
  if (reason_.cause == Cause::connection && now_ns() - at_ns_ < wait_ns) return false;
  error = reason_;
  return true;
}

VerbsPeer::~VerbsPeer() {
  stop_listening();
  if (fd_ >= 0) close(fd_);
}

void VerbsPeer::meet(int fd) {
  fd_ = fd;
  where_ = peer_address(fd);
}

void VerbsPeer::listen(std::function<void()> on_note) {
  watch_ = device_.loop().add(fd_, EPOLLIN | EPOLLONESHOT, [heard = std::move(on_note)](uint32_t) { heard(); });
  if (!watch_) fail("its socket cannot be watched");
}

void VerbsPeer::stop_listening() { device_.loop().remove(watch_); }

Notes::Came VerbsPeer::hear(Note& note, const char*& why) {
  const Notes::Came came = notes_.receive(fd_, note, why);
  if (came == Notes::Came::nothing) device_.loop().change(watch_, EPOLLIN | EPOLLONESHOT);
  return came;
}

void VerbsPeer::hang_up() { shutdown(fd_, SHUT_RDWR); }

Error VerbsPeer::reason(const char* what) const {
  Error reason;
  reason.cause = Cause::connection;
  std::snprintf(reason.text, sizeof reason.text,
                "ringcomm: the connection over verbs %s rank %d at %s broke: %s (RDMA device %s%s)", way_,
                shared_.group.shown(rank_), where_.empty() ? "an address that is still being dialled" : where_.c_str(),
                what, device_.name().c_str(), device_.news().c_str());
  return reason;
}

// The other end hears the reason before it sees the socket's end: nobody here may look at this connection any more, and its own device may never tell it.
void VerbsPeer::fail(const FirstFailure& failure) {
  if (!failure.consequence() && fd_ >= 0) tell(broken_note(failure.status(), failure.vendor()));
  fail(failure.text().c_str(), failure.consequence());
}

void VerbsPeer::fail(const Error& reason, bool consequence) {
  if (!breakage_.set(reason, rank_, consequence)) return;
  if (fd_ >= 0) shutdown(fd_, SHUT_WR);  // the other end's device may never tell it; and what it says is still heard
  shared_.own.ring();
}

}  // namespace ringcomm
