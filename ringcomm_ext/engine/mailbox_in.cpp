// Coming in: headers are matched or kept; payload goes to the receive that waits for it, or is stored until one comes.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/copy.h"
#include "engine/mailbox_peer.h"

namespace ringcomm {
namespace {

constexpr size_t kStreamFrom = size_t{8} << 20;  // from here the copy into the user's buffer bypasses the caches

}  // namespace

void Mailbox::begin_stream_in(Peer& peer, PostedPtr recv, Early* early, size_t bytes) {
  peer.filling = std::move(recv);
  peer.storing = early;
  peer.in_left = peer.in_bytes = bytes;
  peer.in_done = 0;
}

// False: the header stays in its slot (too many early messages, or a size that disagrees).
bool Mailbox::take_header(Peer& peer, const Header& h, Ended& ended, Stall& stall) {
  if (h.kind == Header::kGrant) {
    const auto it = peer.announced.find(h.id);
    peer.granted.emplace_back(h.id, it->second);
    peer.announced.erase(it);
    return true;
  }
  if (h.kind == Header::kData) {
    const auto it = peer.awaited.find(h.id);
    begin_stream_in(peer, it->second, nullptr, h.bytes);
    peer.awaited.erase(it);
    return true;
  }
  const PostedPtr recv = match_posted(peer, h.tag);
  return recv ? take_matched(peer, h, recv, ended, stall) : take_early(peer, h);
}

bool Mailbox::take_matched(Peer& peer, const Header& h, const PostedPtr& recv, Ended& ended, Stall& stall) {
  if (!agree(peer, recv, h.bytes, stall)) {
    peer.recvs.push_front(recv);
    return false;
  }
  if (h.kind == Header::kInline) {
    if (h.bytes) std::memcpy(recv->data, h.data, h.bytes);
    end(recv, peer.rank, nullptr, ended);
  } else if (h.kind == Header::kEager) {
    begin_stream_in(peer, recv, nullptr, h.bytes);
  } else {
    peer.grant(h.id, recv);
  }
  return true;
}

bool Mailbox::take_early(Peer& peer, const Header& h) {
  Early come{h.tag, h.bytes, h.id, h.kind == Header::kAnnounce, h.kind == Header::kInline, {}, nullptr};
  if (peer.early_bytes + come.cost() > early_bytes_) return false;
  peer.early_bytes += come.cost();
  peer.early.push_back(std::move(come));
  Early& early = peer.early.back();
  if (h.kind == Header::kInline) early.data.assign(h.data, h.data + h.bytes);
  if (h.kind == Header::kEager) {
    early.data.resize(h.bytes);
    begin_stream_in(peer, nullptr, &early, h.bytes);
  }
  return true;
}

void Mailbox::stream_in(Peer& peer, Ended& ended) {
  const size_t n = std::min(peer.in->capacity(), peer.in_left);
  uint32_t tag;
  const char* from = peer.in->peek(n, &tag);
  char* to = (peer.filling ? peer.filling->data : peer.storing->data.data()) + peer.in_done;
  (peer.in_bytes >= kStreamFrom ? copy_streaming : copy_cached)(to, from, n);
  peer.in->release();
  peer.in->flush();
  peer.in_done += n;
  peer.in_left -= n;
  if (peer.in_left == 0) end_stream_in(peer, ended);
}

void Mailbox::end_stream_in(Peer& peer, Ended& ended) {
  if (peer.filling) {
    end(peer.filling, peer.rank, nullptr, ended);
  } else if (Early& early = *peer.storing; early.claimed) {
    copy_cached(early.claimed->data, early.data.data(), early.data.size());
    end(early.claimed, peer.rank, nullptr, ended);
    peer.drop(std::find_if(peer.early.begin(), peer.early.end(), [&](const Early& e) { return &e == peer.storing; }));
  } else {
    early.complete = true;
  }
  peer.filling = nullptr;
  peer.storing = nullptr;
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

}  // namespace ringcomm
