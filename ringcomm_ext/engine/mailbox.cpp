#include "engine/mailbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/copy.h"

namespace ringcomm {
namespace {

enum Kind : uint32_t { kInline = 1, kEager = 2, kAnnounce = 3, kGrant = 4, kData = 5 };

// Tags of slots on a message connection: what the slot is. A reader looks before it knows the size.
constexpr uint32_t kHeaderTag = 0x48, kPayloadTag = 0x50;
constexpr size_t kInHeader = 32;
constexpr size_t kMostEarly = 4096;              // unmatched messages kept per peer before its sender has to wait
constexpr size_t kStreamFrom = size_t{8} << 20;  // from here the copy into the user's buffer bypasses the caches

}  // namespace

struct Mailbox::Header {
  uint32_t kind;
  int32_t tag;
  uint64_t bytes;
  uint64_t id;  // of an announced message, chosen by its sender
  char data[kInHeader];
};

struct Mailbox::Early {
  int tag;
  uint64_t bytes, id;
  bool announced;         // only announced: the data waits for a grant
  bool complete = false;  // data is whole
  std::vector<char> data;
  PostedPtr claimed;  // a receive that matched while the data was still coming
};

struct Mailbox::Peer {
  int rank;
  Sender* out = nullptr;
  Receiver* in = nullptr;
  // going out
  std::deque<uint64_t> grants;              // to be sent
  std::deque<PostedPtr> sends;              // whose header is not out yet
  std::map<uint64_t, PostedPtr> announced;  // waiting for their grant
  std::deque<std::pair<uint64_t, PostedPtr>> granted;
  PostedPtr streaming;
  // coming in
  std::list<PostedPtr> recvs;
  std::list<Early> early;
  std::map<uint64_t, PostedPtr> awaited;  // granted by us, data to come
  PostedPtr filling;                      // the receive the current stream goes to, or
  Early* storing = nullptr;               // the early message it goes to
  size_t in_left = 0, in_bytes = 0, in_done = 0;

  bool sending() const {
    return !grants.empty() || !sends.empty() || !announced.empty() || !granted.empty() || streaming;
  }
  bool receiving() const { return !recvs.empty() || !awaited.empty() || in_left > 0; }
};

Mailbox::Mailbox(Connections& connections, int rank, int ranks, size_t eager_bytes)
    : connections_(connections), rank_(rank), ranks_(ranks), eager_(eager_bytes) {
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

// ---------------------------------------------------------------------------------------------------------------- posting

std::vector<Message> Mailbox::swap_posts() {
  std::vector<Message> posts;
  const std::lock_guard<std::mutex> hold(mutex_);
  posts.swap(posts_);
  return posts;
}

void Mailbox::take_posts(Ended& ended, Stall& stall) {
  for (Message& m : swap_posts()) {
    auto posted = std::make_shared<Posted>();
    static_cast<Message&>(*posted) = std::move(m);
    posted->order = order_++;
    if (posted->send) {
      peers_[posted->peer]->sends.push_back(posted);
      continue;
    }
    bool taken = false;
    if (posted->peer == kAnySource) {
      const int first = scan_from_;
      for (int k = 0; k < ranks_ && !taken; ++k) {
        const int from = (first + k) % ranks_;
        taken = match_early(*peers_[from], posted, ended, stall);
        if (taken) scan_from_ = from + 1;
      }
      if (!taken) any_.push_back(posted);
    } else if (!match_early(*peers_[posted->peer], posted, ended, stall)) {
      peers_[posted->peer]->recvs.push_back(posted);
    }
  }
}

// The message sizes at both ends must agree: a receive never truncates and never leaves a tail unwritten.
bool Mailbox::agree(const Peer& peer, const PostedPtr& recv, uint64_t bytes, Stall& stall) {
  if (recv->bytes == bytes) return true;
  stall.request = recv->request;
  stall.waits_for = peer.rank;
  stall.mismatch = true;
  stall.sent_bytes = bytes;
  stall.expected_bytes = recv->bytes;
  return false;
}

// True when `recv` is provided for (or in conflict, see stall). On conflict it stays where fail() finds it.
bool Mailbox::match_early(Peer& peer, const PostedPtr& recv, Ended& ended, Stall& stall) {
  for (auto it = peer.early.begin(); it != peer.early.end(); ++it) {
    if (it->tag != recv->tag || it->claimed) continue;
    if (!agree(peer, recv, it->bytes, stall)) return false;
    if (it->announced) {
      peer.grants.push_back(it->id);
      peer.awaited[it->id] = recv;
      peer.early.erase(it);
    } else if (it->complete) {
      copy_cached(recv->data, it->data.data(), it->data.size());
      end(recv, peer.rank, nullptr, ended);
      peer.early.erase(it);
    } else {
      it->claimed = recv;
      peer.recvs.remove(recv);
    }
    return true;
  }
  return false;
}

Mailbox::PostedPtr Mailbox::match_posted(Peer& peer, int tag) {
  const auto fits = [tag](const PostedPtr& r) { return r->tag == tag; };
  const auto own = std::find_if(peer.recvs.begin(), peer.recvs.end(), fits);
  const auto any = std::find_if(any_.begin(), any_.end(), fits);
  PostedPtr found;
  if (any != any_.end() && (own == peer.recvs.end() || (*any)->order < (*own)->order)) {
    found = *any;
    any_.erase(any);
  } else if (own != peer.recvs.end()) {
    found = *own;
    peer.recvs.erase(own);
  }
  return found;
}

void Mailbox::to_self(Ended& ended, Stall& stall) {
  Peer& self = *peers_[rank_];
  for (auto it = self.sends.begin(); it != self.sends.end();) {
    const PostedPtr recv = match_posted(self, (*it)->tag);
    if (!recv) {
      ++it;
      continue;
    }
    if (!agree(self, recv, (*it)->bytes, stall)) {
      self.recvs.push_front(recv);
      return;
    }
    if (recv->bytes) std::memmove(recv->data, (*it)->data, recv->bytes);
    end(recv, rank_, nullptr, ended);
    end(*it, rank_, nullptr, ended);
    it = self.sends.erase(it);
  }
}

// ---------------------------------------------------------------------------------------------------------------- going out

bool Mailbox::send_header(Peer& peer, Ended& ended) {
  if (peer.grants.empty() && (peer.streaming || (peer.granted.empty() && peer.sends.empty()))) return false;
  char* place = peer.out->reserve(sizeof(Header));
  if (!place) return false;
  Header h{};
  if (!peer.grants.empty()) {
    h.kind = kGrant, h.id = peer.grants.front();
    peer.grants.pop_front();
  } else if (!peer.granted.empty()) {
    auto [id, send] = peer.granted.front();
    peer.granted.pop_front();
    h.kind = kData, h.id = id, h.tag = send->tag, h.bytes = send->bytes;
    peer.streaming = send;
  } else {
    const PostedPtr send = peer.sends.front();
    peer.sends.pop_front();
    h.tag = send->tag, h.bytes = send->bytes;
    if (send->bytes <= kInHeader) {
      h.kind = kInline;
      if (send->bytes) std::memcpy(h.data, send->data, send->bytes);
      end(send, peer.rank, nullptr, ended);
    } else if (send->bytes <= eager_) {
      h.kind = kEager;
      peer.streaming = send;
    } else {
      h.kind = kAnnounce, h.id = next_id_++;
      peer.announced[h.id] = send;
    }
  }
  std::memcpy(place, &h, sizeof h);
  peer.out->publish(kHeaderTag);
  return true;
}

bool Mailbox::stream_out(Peer& peer, Ended& ended) {
  if (!peer.streaming) return false;
  Posted& send = *peer.streaming;
  const size_t n = std::min(peer.out->capacity(), send.bytes - send.done);
  char* place = peer.out->reserve(n);
  if (!place) return false;
  peer.out->fill(place, send.data + send.done, n);
  peer.out->publish(kPayloadTag);
  send.done += n;
  if (send.done == send.bytes) {
    end(peer.streaming, peer.rank, nullptr, ended);
    peer.streaming = nullptr;
  }
  return true;
}

bool Mailbox::pump_out(Peer& peer, Ended& ended) {
  if (!peer.sending()) return false;
  if (!peer.out) peer.out = connections_.message_sender(peer.rank);
  bool moved = false;
  while (send_header(peer, ended) || stream_out(peer, ended)) moved = true;
  return moved;
}

// ---------------------------------------------------------------------------------------------------------------- coming in

void Mailbox::begin_stream_in(Peer& peer, PostedPtr recv, Early* early, size_t bytes) {
  peer.filling = std::move(recv);
  peer.storing = early;
  peer.in_left = peer.in_bytes = bytes;
  peer.in_done = 0;
}

// False: the header stays in its slot (too many early messages, or a size that disagrees).
bool Mailbox::take_header(Peer& peer, const Header& h, Ended& ended, Stall& stall) {
  if (h.kind == kGrant) {
    const auto it = peer.announced.find(h.id);
    peer.granted.emplace_back(h.id, it->second);
    peer.announced.erase(it);
    return true;
  }
  if (h.kind == kData) {
    const auto it = peer.awaited.find(h.id);
    begin_stream_in(peer, it->second, nullptr, h.bytes);
    peer.awaited.erase(it);
    return true;
  }
  const PostedPtr recv = match_posted(peer, h.tag);
  if (recv && !agree(peer, recv, h.bytes, stall)) {
    peer.recvs.push_front(recv);
    return false;
  }
  if (recv && h.kind == kInline) {
    if (h.bytes) std::memcpy(recv->data, h.data, h.bytes);
    end(recv, peer.rank, nullptr, ended);
    return true;
  }
  if (recv && h.kind == kEager) {
    begin_stream_in(peer, recv, nullptr, h.bytes);
    return true;
  }
  if (recv) {
    peer.grants.push_back(h.id);
    peer.awaited[h.id] = recv;
    return true;
  }
  if (peer.early.size() >= kMostEarly) return false;
  peer.early.push_back({h.tag, h.bytes, h.id, h.kind == kAnnounce, h.kind == kInline, {}, nullptr});
  Early& early = peer.early.back();
  if (h.kind == kInline) early.data.assign(h.data, h.data + h.bytes);
  if (h.kind == kEager) {
    early.data.resize(h.bytes);
    begin_stream_in(peer, nullptr, &early, h.bytes);
  }
  return true;
}

bool Mailbox::stream_in(Peer& peer, Ended& ended) {
  const size_t n = std::min(peer.in->capacity(), peer.in_left);
  uint32_t tag;
  const char* from = peer.in->peek(n, &tag);
  char* to = (peer.filling ? peer.filling->data : peer.storing->data.data()) + peer.in_done;
  (peer.in_bytes >= kStreamFrom ? copy_streaming : copy_cached)(to, from, n);
  peer.in->release();
  peer.in->flush();
  peer.in_done += n;
  peer.in_left -= n;
  if (peer.in_left > 0) return true;
  if (peer.filling) {
    end(peer.filling, peer.rank, nullptr, ended);
  } else if (Early& early = *peer.storing; early.claimed) {
    copy_cached(early.claimed->data, early.data.data(), early.data.size());
    end(early.claimed, peer.rank, nullptr, ended);
    peer.early.remove_if([&](const Early& e) { return &e == peer.storing; });
  } else {
    early.complete = true;
  }
  peer.filling = nullptr;
  peer.storing = nullptr;
  return true;
}

bool Mailbox::pump_in(Peer& peer, Ended& ended, Stall& stall) {
  if (!peer.in) peer.in = connections_.message_receiver(peer.rank);
  bool moved = false;
  uint32_t tag;
  while (const char* line = peer.in->peek(kInlineBytes, &tag)) {
    if (tag == kPayloadTag) {
      stream_in(peer, ended);
    } else {
      Header h;
      std::memcpy(&h, line, sizeof h);
      if (!take_header(peer, h, ended, stall)) break;
      peer.in->release();
    }
    moved = true;
  }
  peer.in->flush();
  return moved;
}

// ---------------------------------------------------------------------------------------------------------------- driving

bool Mailbox::find_gone(const Gone& gone, Stall& stall) const {
  bool all_gone = ranks_ > 1;
  for (const auto& peer : peers_) {
    if (peer->rank == rank_) continue;
    const bool is_gone = gone(peer->rank);
    all_gone &= is_gone;
    if (!is_gone) continue;
    each_of(*peer, [&](const PostedPtr& m) { stall.request = m->request, stall.to_send = m->send; });
    if (!stall.request) continue;
    stall.waits_for = peer->rank;
    return true;
  }
  if (any_.empty() || !all_gone) return false;
  stall.request = any_.front()->request;
  stall.waits_for = rank_ == 0 ? 1 : 0;
  return true;
}

bool Mailbox::drive(const Gone& gone, Ended& ended, Stall& stall) {
  bool moved = false, again = true;
  while (again && !idle() && lock_.try_lock()) {
    moved |= drive_held(gone, ended, stall);
    again = lock_.unlock() && !stall.mismatch && !stall.broken;  // those are found once
  }
  return moved && !stall.mismatch && !stall.broken;
}

bool Mailbox::drive_held(const Gone& gone, Ended& ended, Stall& stall) {
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
      if (peer->out && peer->out->error()) {
        stall.broken = peer->out->error(), stall.waits_for = peer->rank;
        each_of(*peer, [&](const PostedPtr& m) { stall.request = m->request; });
      }
    }
    moved |= again;
    if (stall.mismatch || stall.broken) break;
  }
  moved |= ended.size() > ended_before;
  if (!moved && !stall.mismatch && !stall.broken) find_gone(gone, stall);
  return moved;
}

template <typename Visit>
void Mailbox::each_of(const Peer& peer, Visit visit) {
  for (const auto& s : peer.sends) visit(s);
  for (const auto& [id, s] : peer.announced) visit(s);
  for (const auto& [id, s] : peer.granted) visit(s);
  if (peer.streaming) visit(peer.streaming);
  for (const auto& r : peer.recvs) visit(r);
  for (const auto& [id, r] : peer.awaited) visit(r);
  if (peer.filling) visit(peer.filling);
  for (const Early& e : peer.early)
    if (e.claimed) visit(e.claimed);
}

template <typename Visit>
void Mailbox::each_pending(Visit visit) const {
  for (const PostedPtr& r : any_) visit(r);
  for (const auto& p : peers_) each_of(*p, visit);
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

RequestPtr Mailbox::overdue(int64_t now, int* peer) {
  if (idle() || !lock_.try_lock()) return nullptr;
  RequestPtr late;
  each_pending([&](const PostedPtr& m) {
    if (late || m->request->deadline_ns > now) return;
    late = m->request;
    *peer = m->peer;
  });
  lock_.unlock();
  return late;
}

}  // namespace ringcomm
