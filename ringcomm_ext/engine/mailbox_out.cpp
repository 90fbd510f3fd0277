// Going out: grants first, for a peer's data waits for them and they may pass between the slots of a stream; then granted data; then what
// was posted, in order. One stream at a time for each peer.
#include <algorithm>
#include <cstring>

#include "engine/mailbox_peer.h"

namespace ringcomm {

Mailbox::Header Mailbox::grant_header(Peer& peer) {
  Header h{};
  h.kind = Header::kGrant, h.id = peer.grants.front();
  peer.grants.pop_front();
  return h;
}

Mailbox::Header Mailbox::data_header(Peer& peer) {
  const auto [id, send] = peer.granted.front();
  peer.granted.pop_front();
  peer.streaming = send;
  Header h{};
  h.kind = Header::kData, h.id = id, h.tag = send->tag, h.bytes = send->bytes;
  return h;
}

Mailbox::Header Mailbox::message_header(Peer& peer, Ended& ended) {
  const PostedPtr send = peer.sends.front();
  peer.sends.pop_front();
  Header h{};
  h.tag = send->tag, h.bytes = send->bytes;
  if (send->bytes <= kInHeader) {
    h.kind = Header::kInline;
    if (send->bytes) std::memcpy(h.data, send->data, send->bytes);
    end(send, peer.rank, nullptr, ended);
  } else if (send->bytes <= eager_) {
    h.kind = Header::kEager;
    peer.streaming = send;
  } else {
    h.kind = Header::kAnnounce, h.id = next_id_++;
    peer.announced[h.id] = send;
  }
  return h;
}

bool Mailbox::send_header(Peer& peer, Ended& ended) {
  const bool may_begin = !peer.streaming && !(peer.granted.empty() && peer.sends.empty());
  if (peer.grants.empty() && !may_begin) return false;
  char* place = peer.out->reserve(sizeof(Header));
  if (!place) return false;
  const Header h = !peer.grants.empty()    ? grant_header(peer)
                   : !peer.granted.empty() ? data_header(peer)
                                           : message_header(peer, ended);
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

}  // namespace ringcomm
