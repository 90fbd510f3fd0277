// Point-to-point of one rank in one group: tags, any source, any order, on connections of its own.
//
// A message starts with a header. Up to 32 bytes travel inside it; up to `eager` bytes follow it at once, before the receiver asked; larger
// ones wait: announce -> (a receive is posted) grant -> data. So a small message never waits for its receive and a large one is copied once
// into place. Headers that find no receive are kept, in order, up to a bound per peer; then the sender waits.
//
// Threads: post() from any; everything else belongs to the holder of the try-lock.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "core/connection.h"
#include "engine/lane.h"

namespace ringcomm {

inline constexpr int kAnySource = -1;

// One end of a message as the caller gave it.
struct Message {
  RequestPtr request;
  bool send = false;
  char* data = nullptr;
  size_t bytes = 0;
  int peer = 0;  // kAnySource: a receive from whoever comes first
  int tag = 0;
};

class Mailbox {
 public:
  // early_bytes: unmatched messages kept per peer, with their books, before its sender has to wait; its grants and granted data then wait behind the next
  // one, so who sends more than this before the other receives may hang.
  static constexpr size_t kEarlyBytes = size_t{256} << 20;
  Mailbox(Connections& connections, int rank, int ranks, size_t eager_bytes, size_t early_bytes = kEarlyBytes);
  ~Mailbox();

  void post(Message message);
  bool idle() const { return pending_.load(std::memory_order_seq_cst) == 0; }
  int pending_sends() const { return sends_.load(std::memory_order_seq_cst); }

  // Moves what can be moved; result and stall as in Lane::drive. `gone(rank)`: that rank will do nothing more. `closed(rank)`, if given: it has left or
  // died, so that its connections end is no fault of theirs, though what it sent may still come.
  using Gone = std::function<bool(int)>;
  bool drive(const Gone& gone, Ended& ended, Stall& stall, const Gone& closed = nullptr);
  bool fail(const Error& error, Ended& ended);
  // A pending request whose deadline has passed, and the rank it waits for (kAnySource: any); null if there is none or another thread drives.
  // `wanted`: another thread wanted to drive meanwhile, and relies on a look after this.
  RequestPtr overdue(int64_t now, int* peer, bool* wanted);

 private:
  struct Header;
  struct Early;  // a message that came before its receive
  struct Peer;
  struct Posted : Message {
    uint64_t order = 0;
    size_t done = 0;  // bytes moved
  };
  using PostedPtr = std::shared_ptr<Posted>;

  // mailbox.cpp
  bool drive_held(const Gone& gone, const Gone& closed, Ended& ended, Stall& stall);
  void find_broken(const Peer& peer, const Gone& closed, Stall& stall) const;
  void fail_held(const Error& error, Ended& ended);
  bool find_gone(const Gone& gone, Stall& stall) const;
  void end(const PostedPtr& message, int source, const Error* error, Ended& ended);
  template <typename Visit>
  void each_pending(Visit visit) const;

  // mailbox_match.cpp
  std::vector<Message> swap_posts();
  void take_posts(Ended& ended, Stall& stall);
  bool agree(const Peer& peer, const PostedPtr& recv, uint64_t bytes, Stall& stall);
  bool match_early(Peer& peer, const PostedPtr& recv, Ended& ended, Stall& stall);
  bool match_early_of_any(const PostedPtr& recv, Ended& ended, Stall& stall);
  PostedPtr match_posted(Peer& peer, int tag);
  void to_self(Ended& ended, Stall& stall);

  // mailbox_out.cpp
  Header grant_header(Peer& peer);
  Header data_header(Peer& peer);
  Header message_header(Peer& peer, Ended& ended);
  bool send_header(Peer& peer, Ended& ended);
  bool stream_out(Peer& peer, Ended& ended);
  bool pump_out(Peer& peer, Ended& ended);

  // mailbox_in.cpp
  void begin_stream_in(Peer& peer, PostedPtr recv, Early* early, size_t bytes);
  bool take_header(Peer& peer, const Header& h, Ended& ended, Stall& stall);
  bool take_matched(Peer& peer, const Header& h, const PostedPtr& recv, Ended& ended, Stall& stall);
  bool take_early(Peer& peer, const Header& h);
  void stream_in(Peer& peer, Ended& ended);
  void end_stream_in(Peer& peer, Ended& ended);
  bool pump_in(Peer& peer, Ended& ended, Stall& stall);

  Connections& connections_;
  const int rank_, ranks_;
  const size_t eager_, early_bytes_;
  std::mutex mutex_;
  std::vector<Message> posts_;  // under mutex_, in posting order
  std::atomic<int> pending_{0}, sends_{0};

  TryLock lock_;  // everything below
  std::vector<std::unique_ptr<Peer>> peers_;
  std::list<PostedPtr> any_;  // receives from any source, in posting order
  uint64_t order_ = 0, next_id_ = 1;
  int scan_from_ = 0;    // any-source looks for early messages from here, behind the rank served last: fairness
  bool failed_ = false;  // what is on the connections belongs to messages that are gone: nothing is read any more
};

}  // namespace ringcomm
