// Matching: which receive a message belongs to, whichever of the two comes first. In posting order at the receiver, in sending order for each
// peer and tag.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/copy.h"
#include "engine/mailbox_peer.h"

namespace ringcomm {

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
    } else if (posted->peer == kAnySource) {
      if (!match_early_of_any(posted, ended, stall)) any_.push_back(posted);
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

// True when `recv` is provided for. Not so where the sizes disagree (see stall): it then stays where fail() finds it.
bool Mailbox::match_early(Peer& peer, const PostedPtr& recv, Ended& ended, Stall& stall) {
  for (auto it = peer.early.begin(); it != peer.early.end(); ++it) {
    if (it->tag != recv->tag || it->claimed) continue;
    if (!agree(peer, recv, it->bytes, stall)) return false;
    if (it->announced) {
      peer.grant(it->id, recv);
      peer.drop(it);
    } else if (it->complete) {
      copy_cached(recv->data, it->data.data(), it->data.size());
      end(recv, peer.rank, nullptr, ended);
      peer.drop(it);
    } else {
      it->claimed = recv;
      peer.recvs.remove(recv);
    }
    return true;
  }
  return false;
}

bool Mailbox::match_early_of_any(const PostedPtr& recv, Ended& ended, Stall& stall) {
  const int first = scan_from_;
  for (int k = 0; k < ranks_; ++k) {
    const int from = (first + k) % ranks_;
    if (!match_early(*peers_[from], recv, ended, stall)) continue;
    scan_from_ = from + 1;
    return true;
  }
  return false;
}

// Takes the receive out of its list: the one posted first of those for this peer and those for any source. Null if there is none.
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

}  // namespace ringcomm
