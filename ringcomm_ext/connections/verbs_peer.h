// The other end of a connection over verbs, as this one knows it: the socket by which the two met and go on talking, and how the connection broke. Writer and
// reader do alike what stands here. For verbs*.cpp only. docs/rdma.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "connections/verbs_notes.h"
#include "connections/verbs_wire.h"

namespace ringcomm {

// Whether a connection is broken, by whom and since when. The first reason counts, but for one that is a mere consequence of another (a flushed request, a closed
// socket): the other may come later, or be told by the other end, so a consequence waits longer. Any thread.
class Breakage {
 public:
  // True: it was whole before.
  bool set(const Error& reason, int peer, bool consequence = false);
  explicit operator bool() const { return broken_.load(std::memory_order_acquire); }
  // Fills `error` once it has been broken for the time of grace; what is no fault of a peer's is told at once.
  bool lost(int64_t grace_ns, Error& error) const;

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> broken_{false};
  bool consequence_ = false;
  Error reason_;
  int64_t at_ns_ = 0;
};

// What failed completions mean: the first that is not a mere consequence.
class FirstFailure {
 public:
  void add(const ibv::Wc& wc) {
    if (!any_ || (status_ == ibv::kWcFlushed && wc.status != ibv::kWcFlushed))
      status_ = wc.status, vendor_ = wc.vendor_err;
    any_ = true;
  }
  explicit operator bool() const { return any_; }
  bool consequence() const { return status_ == ibv::kWcFlushed; }
  int status() const { return status_; }
  uint32_t vendor() const { return vendor_; }
  std::string text() const { return completion_text(status_, vendor_); }

 private:
  bool any_ = false;
  int status_ = 0;
  uint32_t vendor_ = 0;
};

// Threads: meeting and talking are the poller's, but for tell(), which its owner orders; fail(), broken() and lost() may be called by any.
class VerbsPeer {
 public:
  // `way`: "to" a reader or "from" a writer, as errors say it.
  VerbsPeer(VerbsShared& shared, VerbsDevice& device, const char* way, int rank)
      : shared_(shared), device_(device), way_(way), rank_(rank) {}
  ~VerbsPeer();
  VerbsPeer(const VerbsPeer&) = delete;
  VerbsPeer& operator=(const VerbsPeer&) = delete;

  int rank() const { return rank_; }
  bool met() const { return fd_ >= 0; }

  // The socket, which becomes this object's. Once.
  void meet(int fd);
  // Has `on_note` called by the poller whenever there is something to hear, until stop_listening(). Fails where that cannot be.
  void listen(std::function<void()> on_note);
  void stop_listening();
  // The next note, if it is whole. At the end `why` says which; after `nothing` on_note will be called again.
  Notes::Came hear(Note& note, const char*& why);
  // Null, or what went wrong.
  const char* tell(const Note& note) { return Notes::send(fd_, note); }
  // Nothing is heard or told any more: the other end sees the socket's.
  void hang_up();

  // The sentence about a broken connection.
  Error reason(const char* what) const;
  void fail(const char* what, bool consequence = false) { fail(reason(what), consequence); }
  void fail(const FirstFailure& failure);
  void fail(const Error& reason, bool consequence = false);
  bool broken() const { return static_cast<bool>(breakage_); }
  bool lost(Error& error) const { return breakage_.lost(shared_.group.grace_ns, error); }

 private:
  VerbsShared& shared_;
  VerbsDevice& device_;
  const char* const way_;
  const int rank_;
  int fd_ = -1;
  Watch watch_;
  Notes notes_;
  std::string
      where_;  // its address; does not change once there is a queue pair, and before that only the poller, which sets it, looks
  Breakage breakage_;
};

}  // namespace ringcomm
