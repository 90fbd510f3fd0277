#include "engine/mailbox.h"

#include <utility>

#include "engine/mailbox_peer.h"

namespace ringcomm {

Mailbox::Mailbox(Connections& connections, int rank, int ranks, size_t eager_bytes, size_t early_bytes)
    : connections_(connections), rank_(rank), ranks_(ranks), eager_(eager_bytes), early_bytes_(early_bytes) {
  static_assert(sizeof(Header) == kInlineBytes);
  for (int r = 0; r < ranks; ++r) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = r;
  }
}

Mailbox::~Mailbox() = default;

void Mailbox::post(Message message) {
  if (message.send) sends_.fetch_add(1, std::memory_order_seq_cst);
  const std::lock_guard<std::mutex> hold(mutex_);
  posts_.push_back(std::move(message));
  pending_.fetch_add(1, std::memory_order_seq_cst);
}

void Mailbox::end(const PostedPtr& message, int source, const Error* error, Ended& ended) {
  if (!message->send) message->request->source = source;
  if (message->request->part_done(error)) ended.push_back(message->request);
  if (message->send) sends_.fetch_sub(1, std::memory_order_seq_cst);
  pending_.fetch_sub(1, std::memory_order_seq_cst);
}

bool Mailbox::find_gone(const Gone& gone, Stall& stall) const {
  bool all_gone = ranks_ > 1;
  for (const auto& peer : peers_) {
    if (peer->rank == rank_) continue;
    const bool is_gone = gone(peer->rank);
    all_gone &= is_gone;
    if (!is_gone) continue;
    peer->each([&](const PostedPtr& m) { stall.request = m->request, stall.to_send = m->send; });
    if (!stall.request) continue;
    stall.waits_for = peer->rank;
    return true;
  }
  if (any_.empty() || !all_gone) return false;
  stall.request = any_.front()->request;
  stall.waits_for = rank_ == 0 ? 1 : 0;
  return true;
}

// What comes in may be broken, too, or have no memory to come to; of who has left its end is no news.
void Mailbox::find_broken(const Peer& peer, const Gone& closed, Stall& stall) const {
  const bool listens = peer.in && (peer.receiving() || !any_.empty());
  const Error* broken = peer.out ? peer.out->error() : nullptr;
  if (!broken && listens && peer.in->error() && !closed(peer.rank)) broken = peer.in->error();
  if (!broken) return;
  stall.broken = broken, stall.waits_for = peer.rank;
  peer.each([&](const PostedPtr& m) { stall.request = m->request; });
}

bool Mailbox::drive(const Gone& gone, Ended& ended, Stall& stall, const Gone& closed) {
  bool moved = false, again = true;
  while (again && !idle() && lock_.try_lock()) {
    moved |= drive_held(gone, closed ? closed : gone, ended, stall);
    again = lock_.unlock() && !stall.mismatch && !stall.broken;  // those are found once
  }
  return moved && !stall.mismatch && !stall.broken;
}

bool Mailbox::drive_held(const Gone& gone, const Gone& closed, Ended& ended, Stall& stall) {
  stall = Stall{};
  if (failed_) return false;
  const size_t ended_before = ended.size();
  take_posts(ended, stall);
  to_self(ended, stall);
  bool moved = false;
  bool again = !stall.mismatch;
  while (again) {
    again = false;
    for (const auto& peer : peers_) {
      if (peer->rank == rank_) continue;
      again |= pump_out(*peer, ended);
      if (peer->sending() || peer->receiving() || !any_.empty()) again |= pump_in(*peer, ended, stall);
      find_broken(*peer, closed, stall);
    }
    moved |= again;
    if (stall.mismatch || stall.broken) break;
  }
  moved |= ended.size() > ended_before;
  if (!moved && !stall.mismatch && !stall.broken) find_gone(gone, stall);
  return moved;
}

template <typename Visit>
void Mailbox::each_pending(Visit visit) const {
  for (const PostedPtr& r : any_) visit(r);
  for (const auto& p : peers_) p->each(visit);
}

bool Mailbox::fail(const Error& error, Ended& ended) {
  bool again = true;
  while (again && !idle()) {
    if (!lock_.try_lock()) return false;
    fail_held(error, ended);
    again = lock_.unlock();
  }
  return true;
}

void Mailbox::fail_held(const Error& error, Ended& ended) {
  failed_ = true;
  for (Message& m : swap_posts()) {
    auto posted = std::make_shared<Posted>();
    static_cast<Message&>(*posted) = std::move(m);
    end(posted, -1, &error, ended);
  }
  std::vector<PostedPtr> all;
  each_pending([&](const PostedPtr& m) { all.push_back(m); });
  for (const PostedPtr& m : all) end(m, -1, &error, ended);
  any_.clear();
  for (auto& p : peers_) {
    const int rank = p->rank;
    *p = Peer{};
    p->rank = rank;
  }
}

RequestPtr Mailbox::overdue(int64_t now, int* peer, bool* wanted) {
  if (idle() || !lock_.try_lock()) return nullptr;
  RequestPtr late;
  each_pending([&](const PostedPtr& m) {
    if (late || m->request->deadline_ns > now) return;
    late = m->request;
    *peer = m->peer;
  });
  *wanted = lock_.unlock();
  return late;
}

}  // namespace ringcomm
