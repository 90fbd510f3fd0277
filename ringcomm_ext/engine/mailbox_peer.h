// What a mailbox knows of one peer, and what travels between two mailboxes. For mailbox*.cpp only.
//
// Threads: the holder of the mailbox's try-lock.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/mailbox.h"

namespace ringcomm {

// Tags of slots on a message connection: what the slot is. A reader looks before it knows the size.
inline constexpr uint32_t kHeaderTag = 0x48, kPayloadTag = 0x50;
inline constexpr size_t kInHeader = 32;

struct Mailbox::Header {
  enum Kind : uint32_t { kInline = 1, kEager = 2, kAnnounce = 3, kGrant = 4, kData = 5 };

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

  static constexpr size_t kBooks = 128;  // about what the list and this take
  size_t cost() const { return kBooks + (announced ? 0 : bytes); }
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
  size_t early_bytes = 0;
  std::map<uint64_t, PostedPtr> awaited;  // granted by us, data to come
  PostedPtr filling;                      // the receive the current stream goes to, or
  Early* storing = nullptr;               // the early message it goes to
  size_t in_left = 0, in_bytes = 0, in_done = 0;

  bool sending() const {
    return !grants.empty() || !sends.empty() || !announced.empty() || !granted.empty() || streaming;
  }
  bool receiving() const { return !recvs.empty() || !awaited.empty() || in_left > 0; }

  void drop(std::list<Early>::iterator message) {
    early_bytes -= message->cost();
    early.erase(message);
  }

  // The announced message `id` may come: `recv` has room for it.
  void grant(uint64_t id, const PostedPtr& recv) {
    grants.push_back(id);
    awaited[id] = recv;
  }

  // Every message that belongs to this peer alone, once.
  template <typename Visit>
  void each(Visit visit) const {
    for (const auto& s : sends) visit(s);
    for (const auto& [id, s] : announced) visit(s);
    for (const auto& [id, s] : granted) visit(s);
    if (streaming) visit(streaming);
    for (const auto& r : recvs) visit(r);
    for (const auto& [id, r] : awaited) visit(r);
    if (filling) visit(filling);
    for (const Early& e : early)
      if (e.claimed) visit(e.claimed);
  }
};

}  // namespace ringcomm
