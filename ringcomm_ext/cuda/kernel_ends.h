// The ends that a program's steps name, as one block sees them: who waits for which head and credit, where slots lie, what is published when. The three parts of a step are
// in kernel.h.
#pragma once

#include "cuda/cells.h"
#include "cuda/kernel_call.h"
#include "cuda/table.h"

namespace ringcomm::cuda {

inline constexpr uint32_t kSpinsPerLook = 256;  // at the abort word, which is across the bus; guessed

// Deals work out among the threads of a block, one item after the other.
struct Share {
  uint32_t tid, nthr, next = 0;
  RINGCOMM_DEVICE Share(uint32_t id, uint32_t n) : tid(id), nthr(n) {}
  RINGCOMM_DEVICE bool mine() {
    const bool is = next == tid;
    next = next + 1 == nthr ? 0 : next + 1;
    return is;
  }
};

// What a step acts on in one turn of the program: the block's part of the piece.
struct Piece {
  uint64_t at;     // byte of the chunk where the block's stripe begins
  uint32_t bytes;  // of the stripe
  uint32_t tag;
};

template <class Context>
class KernelEnds {
 public:
  RINGCOMM_DEVICE KernelEnds(Context& ctx, const KernelCall& call)
      : ctx_(ctx), call_(call), table_(call.program), shared_(ctx.shared()), started_(ctx.now_ns()) {}

  RINGCOMM_DEVICE bool low_latency() const { return (call_.flags & kCallLowLatency) != 0; }
  RINGCOMM_DEVICE DeviceChunk chunk(int32_t ref) const {
    return chunk_of(kind_of(ref) == RefKind::in ? call_.in : call_.out, index_of(ref), call_.element);
  }

  RINGCOMM_DEVICE void at_step(int32_t step) { step_ = step; }  // for what fail() writes

  // In `wait`. False: this thread gives up.

  RINGCOMM_DEVICE bool wait_sources(const PackedStep& s, const Piece& p) {
    Share share(ctx_.tid, ctx_.nthr);
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < s.nsources; ++k)
      if (share.mine() && !source_ready(table_.source(s, k), k, p)) return false;
    return true;
  }

  // Room at every reader, and where the results go: the destination, then every copy. `targets`: how many, the same in all threads.
  RINGCOMM_DEVICE bool wait_targets(const PackedStep& s, const Piece& p, bool good, int& targets) {
    Share share(ctx_.tid, ctx_.nthr);
    if (s.dst != kNoRef) {
      if (share.mine()) shared_.target[0] = chunk(s.dst).data + p.at, shared_.target_flag[0] = 0;
      targets = 1;
    }
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < s.nsenders; ++k) {
      const SenderEnd& to = call_.senders[index_of(table_.sender(s, k))];
      const uint32_t position = to.positions[ctx_.blk];
      RINGCOMM_NO_UNROLL
      for (int r = 0; r < to.readers; ++r) {
        if (!share.mine() || !good) continue;
        good = has_room(call_.readers[to.first_reader + r], position);
        if (r >= to.copies) continue;
        shared_.target[targets + r] = call_.readers[to.first_reader + r].slots + stripe_at(position);
        shared_.target_flag[targets + r] = low_latency() ? low_latency_flag(position) : 0;
      }
      targets += to.copies;
    }
    return good;
  }

  // At the end of a program that says so: until every reader has taken everything.
  RINGCOMM_DEVICE void wait_for_readers() {
    Share share(ctx_.tid, ctx_.nthr);
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < table_.header().nsenders; ++k) {
      const SenderEnd& to = call_.senders[k];
      const uint32_t position = to.positions[ctx_.blk];
      RINGCOMM_NO_UNROLL
      for (int r = 0; r < to.readers; ++r) {
        const ReaderEnd& reader = call_.readers[to.first_reader + r];
        const uint32_t* credit = &reader.credits[ctx_.blk].position;
        if (share.mine() && !wait(reader.peer, true, [&] { return ld_acquire_sys(credit) == position; })) return;
      }
    }
  }

  // In `act`.

  // The tag's word of each low latency slot: written for own messages, awaited for others'.
  RINGCOMM_DEVICE bool exchange_tags(const PackedStep& s, const Piece& p, int targets) {
    Share share(ctx_.tid, ctx_.nthr);
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < targets; ++k)
      if (share.mine() && shared_.target_flag[k] != 0)
        st_relaxed_sys(reinterpret_cast<uint64_t*>(shared_.target[k]), flagged(p.tag, shared_.target_flag[k]));
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < s.nsources; ++k) {
      if (!share.mine() || shared_.source_flag[k] == 0) continue;
      const int32_t peer = shared_.source_peer[k];
      const uint64_t* at = reinterpret_cast<const uint64_t*>(shared_.source[k]);
      uint64_t word = 0;
      const auto arrived = [&] {
        word = ld_relaxed_sys(at);
        return static_cast<uint32_t>(word >> 32) == shared_.source_flag[k];
      };
      if (!wait(peer, false, arrived) || !right_tag(static_cast<uint32_t>(word), p, peer)) return false;
    }
    return true;
  }

  // The cell at byte `at` of source k's low latency slot.
  template <uint32_t kBytes>
  RINGCOMM_DEVICE_CALL bool await_flagged(int k, uint32_t at, uint32_t bytes, Cell<kBytes>& cell) {
    const uint32_t flag = shared_.source_flag[k];
    const char* stripe = shared_.source[k];
    cell = {};
    return wait(shared_.source_peer[k], false, [&] { return look_flagged(stripe, at, bytes, flag, cell); });
  }

  RINGCOMM_DEVICE void move_on(const PackedStep& s) {
    Share share(ctx_.tid, ctx_.nthr);
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < s.nsources; ++k) {
      const int32_t ref = table_.source(s, k);
      if (kind_of(ref) == RefKind::receiver && share.mine()) ++call_.receivers[index_of(ref)].positions[ctx_.blk];
    }
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < s.nsenders; ++k)
      if (share.mine()) ++call_.senders[index_of(table_.sender(s, k))].positions[ctx_.blk];
  }

  // In `signal`.

  RINGCOMM_DEVICE void signal(const PackedStep& s, const Piece& p) {
    Share share(ctx_.tid, ctx_.nthr);
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < s.nsenders && !low_latency(); ++k) {
      const SenderEnd& to = call_.senders[index_of(table_.sender(s, k))];
      const uint32_t position = to.positions[ctx_.blk];
      RINGCOMM_NO_UNROLL
      for (int r = 0; r < to.readers; ++r) {
        if (!share.mine()) continue;
        HeadLine& head = call_.readers[to.first_reader + r].heads[ctx_.blk];
        head.tags[slot_of(position - 1)] = p.tag;
        st_release_sys(&head.position, position);
      }
    }
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < s.nsources; ++k) {
      const int32_t ref = table_.source(s, k);
      if (kind_of(ref) != RefKind::receiver || !share.mine()) continue;
      const ReceiverEnd& from = call_.receivers[index_of(ref)];
      st_release_sys(&from.credits[ctx_.blk].position, from.positions[ctx_.blk]);
    }
  }

 private:
  // True where this block is to end; the first of its threads to find out writes why.
  RINGCOMM_DEVICE bool gives_up(int32_t peer, bool to_send) {
    if (ld_relaxed_sys(&shared_.failed) != 0) return true;
    const bool aborted = ld_relaxed_sys(call_.abort) != 0;
    if (!aborted && (call_.timeout_ns == 0 || ctx_.now_ns() - started_ < call_.timeout_ns)) return false;
    fail(aborted ? FailureCause::aborted : FailureCause::timeout, peer, to_send, 0);
    return true;
  }
  RINGCOMM_DEVICE void fail(FailureCause cause, int32_t peer, bool to_send, uint32_t tag) {
    if (ld_relaxed_sys(&shared_.failed) != 0) return;
    st_relaxed_sys(&shared_.failed, 1);
    Failure& f = call_.failures[ctx_.blk];
    if (ld_relaxed_sys(&f.word) != 0) return;  // an earlier call's: what came of it says less
    st_relaxed_sys(&f.tag, tag);
    st_relaxed_sys(&f.word, static_cast<uint64_t>(step_) << kFailureStep |
                                (static_cast<uint64_t>(peer) & kFailurePeerMask) << kFailurePeer |
                                static_cast<uint64_t>(to_send) << kFailureToSend | static_cast<uint64_t>(cause));
  }
  template <class Arrived>
  RINGCOMM_DEVICE bool wait(int32_t peer, bool to_send, const Arrived& arrived) {
    RINGCOMM_NO_UNROLL
    for (uint32_t spins = 0; !arrived();) {
      if (++spins % kSpinsPerLook == 0 && gives_up(peer, to_send)) return false;
      ctx_.pause();
    }
    return true;
  }
  RINGCOMM_DEVICE bool right_tag(uint32_t tag, const Piece& p, int32_t peer) {
    if (tag == p.tag) return true;
    fail(FailureCause::foreign_tag, peer, false, tag);
    return false;
  }

  RINGCOMM_DEVICE uint32_t slot_of(uint32_t position) const {
#ifdef RINGCOMM_PLANTED_SINGLE_SLOT  // cuda_slot_planted.cpp: every message in the same slot, with credits for several
    (void)position;
    return 0;
#else
    return position & (call_.slots - 1);
#endif
  }
  RINGCOMM_DEVICE uint64_t stripe_at(uint32_t position) const {
    return static_cast<uint64_t>(slot_of(position)) * call_.slot_bytes + ctx_.blk * call_.stripe;
  }

  RINGCOMM_DEVICE bool source_ready(int32_t ref, int k, const Piece& p) {
    shared_.source_flag[k] = 0;
    shared_.source_scaled[k] = kind_of(ref) == RefKind::in && (call_.flags & kCallPremultiplied) != 0;
    if (kind_of(ref) != RefKind::receiver) {
      shared_.source[k] = chunk(ref).data + p.at;
      return true;
    }
    const ReceiverEnd& from = call_.receivers[index_of(ref)];
    const uint32_t position = from.positions[ctx_.blk];
    shared_.source[k] = from.slots + stripe_at(position);
    if (low_latency()) {  // waits where it reads
      shared_.source_flag[k] = low_latency_flag(position), shared_.source_peer[k] = from.peer;
      return true;
    }
    const HeadLine& head = from.heads[ctx_.blk];
    const auto arrived = [&] { return static_cast<int32_t>(ld_acquire_sys(&head.position) - position) > 0; };
    return wait(from.peer, false, arrived) && right_tag(head.tags[slot_of(position)], p, from.peer);
  }
  RINGCOMM_DEVICE bool has_room(const ReaderEnd& reader, uint32_t position) {
    const uint32_t* credit = &reader.credits[ctx_.blk].position;
    return wait(reader.peer, true, [&] { return position - ld_acquire_sys(credit) < call_.slots; });
  }

  Context& ctx_;
  const KernelCall& call_;
  const TableView table_;
  BlockShared& shared_;
  const uint64_t started_;
  int32_t step_ = 0;
};

}  // namespace ringcomm::cuda
