// The kernel interpreter: runs one program over one message, as core/interpreter.h does on the host, with blocks of threads instead of one. One header for
// nvcc and g++.
//
// Every block runs the whole program on its own stripe of each piece. Which block has an element depends on the chunk's length and the element's index alone, so
// memory that several steps touch is always touched by the same block, and blocks never wait for each other.
//
// A step is three parts with a barrier of the block between them:
//
//   wait     threads share out the ends that the step names and wait for each; addresses go to BlockShared       acquires
//   act      all threads move or combine cells; one per end moves its position on
//   signal   threads share out the heads and credits                                                              releases
//
// Positions are written in `act` only and read in the other two, so the barriers order them. Who finds that it cannot go on (abort, timeout, another call's slot) writes
// why, and the block's next barrier tells all its threads; they return. Nothing traps: that would poison the context.
#pragma once

#include "cuda/kernel_call.h"
#include "cuda/operations.h"
#include "cuda/table.h"

namespace ringcomm::cuda {

inline constexpr uint32_t kSpinsPerLook =
    256;  // guessed: at the abort word, which is across the bus; see the cost in docs/cuda.md

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

template <class Format, class Context>
class KernelInterpreter {
 public:
  RINGCOMM_DEVICE KernelInterpreter(Context& ctx, const KernelCall& call)
      : ctx_(ctx), call_(call), table_(call.program), shared_(ctx.shared()), started_(ctx.now_ns()) {}

  RINGCOMM_DEVICE void run() {
    if (ctx_.tid == 0) st_relaxed_sys(&shared_.failed, 0);
    ctx_.sync_any(false);
    const uint64_t turns = call_.loops == 0 ? 0 : call_.loops + static_cast<uint64_t>(table_.header().max_lag);
    RINGCOMM_NO_UNROLL
    for (uint64_t turn = 0; turn < turns; ++turn) RINGCOMM_NO_UNROLL
    for (step_ = 0; step_ < table_.header().nsteps; ++step_)
      if (!run_step(table_.step(step_), turn)) return;
    if ((table_.header().flags & kFlagDrain) && turns > 0) wait_for_readers();
  }

 private:
  using Cells = typename Format::Cells;

  // What a step acts on in this turn, as this block sees it.
  struct Piece {
    uint64_t at;     // byte of the chunk where the block's stripe begins
    uint32_t bytes;  // of the stripe
    uint32_t tag;
  };

  RINGCOMM_DEVICE bool low_latency() const { return (call_.flags & kCallLowLatency) != 0; }
  RINGCOMM_DEVICE DeviceChunk chunk(int32_t ref) const {
    return chunk_of(kind_of(ref) == RefKind::in ? call_.in : call_.out, index_of(ref), call_.element);
  }

  RINGCOMM_DEVICE bool piece_of(const PackedStep& s, uint64_t turn, Piece& p) const {
    const uint64_t lag = static_cast<uint64_t>(s.lag);
    if (turn < lag) return false;
    const uint64_t first = (turn - lag) * call_.piece, count = chunk(s.chunk).count;
    const bool sized = (call_.flags & kCallSizedTags) != 0;
    if (first >= count && !(sized && count == 0 && first == 0)) return false;
    const uint64_t here = count - first < call_.piece ? count - first : call_.piece;
    const uint32_t bytes = static_cast<uint32_t>(here) * call_.element;
    const uint32_t stripe = stripe_of(bytes, ctx_.nblk);
    const uint32_t begin = ctx_.blk * stripe < bytes ? ctx_.blk * stripe : bytes;
    p.at = first * call_.element + begin;
    p.bytes = bytes - begin < stripe ? bytes - begin : stripe;
    p.tag = sized ? call_.tag ^ size_tag(count * call_.element) : call_.tag;
    return true;
  }

  RINGCOMM_DEVICE bool run_step(const PackedStep& s, uint64_t turn) {
    Piece p;
    if (!piece_of(s, turn, p)) return true;
    int targets = 0;
    bool good = wait_sources(s, p);
    good = wait_targets(s, p, good, targets) && good;
    if (ctx_.sync_any(!good)) return false;
    good = act(s, p, targets);
    move_on(s);
#ifndef RINGCOMM_PLANTED_MISSING_BARRIER  // cuda_barrier_planted.cpp: signals overtake what other threads of the block still do
    if (ctx_.sync_any(!good)) return false;
#endif
    signal(s, p);
    return true;
  }

  // Waiting.

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

  RINGCOMM_DEVICE bool wait_sources(const PackedStep& s, const Piece& p) {
    Share share(ctx_.tid, ctx_.nthr);
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < s.nsources; ++k)
      if (share.mine() && !source_ready(table_.source(s, k), k, p)) return false;
    return true;
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
  RINGCOMM_DEVICE bool has_room(const ReaderEnd& reader, uint32_t position) {
    const uint32_t* credit = &reader.credits[ctx_.blk].position;
    return wait(reader.peer, true, [&] { return position - ld_acquire_sys(credit) < call_.slots; });
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

  // Acting.

  RINGCOMM_DEVICE bool act(const PackedStep& s, const Piece& p, int targets) {
    if (low_latency() && !exchange_tags(s, p, targets)) return false;
    switch (static_cast<Opcode>(s.opcode)) {
      case Opcode::skip:
        return true;
      case Opcode::reduce:
      case Opcode::reduce_send: {
        const bool divides = (s.flags & kFlagFinish) && call_.op == static_cast<uint32_t>(ReduceOp::avg);
        return combine(s.nsources, targets, p, divides ? static_cast<uint32_t>(table_.header().nranks) : 0);
      }
      default:
        if constexpr (Format::kScales)
          if (shared_.source_scaled[0]) return combine(1, targets, p, 0);
        return move(targets, p);
    }
  }

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

  template <uint32_t kBytes>
  RINGCOMM_DEVICE bool load(int k, uint32_t at, uint32_t bytes, Cell<kBytes>& cell) {
    if (shared_.source_flag[k] != 0) return load_flagged(k, at, bytes, cell);
    cell = load_cell<kBytes>(shared_.source[k] + at, bytes);
    return true;
  }
  template <uint32_t kBytes>
  RINGCOMM_DEVICE_CALL bool load_flagged(int k, uint32_t at, uint32_t bytes, Cell<kBytes>& cell) {
    const uint32_t flag = shared_.source_flag[k];
    const char* stripe = shared_.source[k];
    cell = {};
    return wait(shared_.source_peer[k], false, [&] { return look_flagged(stripe, at, bytes, flag, cell); });
  }
  template <uint32_t kBytes>
  RINGCOMM_DEVICE void store(int targets, uint32_t at, uint32_t bytes, const Cell<kBytes>& cell) {
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < targets; ++k) {
      const uint32_t flag = shared_.target_flag[k];
      if (flag != 0)
        store_flagged(shared_.target[k], at, cell, bytes, flag);
      else
        store_cell(shared_.target[k] + at, cell, bytes);
    }
  }

  RINGCOMM_DEVICE bool move(int targets, const Piece& p) {
    if (targets == 1 && shared_.target[0] == shared_.source[0]) return true;  // in place: nothing to do
    constexpr uint32_t kCell = 16;
    constexpr uint32_t kInFlight = 4;  // loads of a thread before its first store: hides their latency
    const uint32_t stride = ctx_.nthr * kCell;
    uint32_t at = ctx_.tid * kCell;
    RINGCOMM_NO_UNROLL
    for (; at + (kInFlight - 1) * stride + kCell <= p.bytes; at += kInFlight * stride) {
      Cell<kCell> cell[kInFlight];
      RINGCOMM_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i)
        if (!load(0, at + i * stride, kCell, cell[i])) return false;
      RINGCOMM_UNROLL
      for (uint32_t i = 0; i < kInFlight; ++i) store(targets, at + i * stride, kCell, cell[i]);
    }
    RINGCOMM_NO_UNROLL
    for (; at < p.bytes; at += stride) {
      const uint32_t bytes = p.bytes - at < kCell ? p.bytes - at : kCell;
      Cell<kCell> cell;
      if (!load(0, at, bytes, cell)) return false;
      store(targets, at, bytes, cell);
    }
    return true;
  }

  // Rounded, as if the caller had multiplied.
  RINGCOMM_DEVICE_CALL Cells scaled(const Cells cell) {
    typename Format::Lane lane[Format::kLanes];
    Format::read(cell, lane, call_.variant);
    RINGCOMM_UNROLL
    for (int i = 0; i < Format::kLanes; ++i) lane[i] *= static_cast<typename Format::Lane>(call_.factor);
    return Format::write(lane, call_.variant);
  }

  // All sources by the call's operation; where `divisor` is not 0, divided by it.
  RINGCOMM_DEVICE bool combine(int sources, int targets, const Piece& p, uint32_t divisor) {
    constexpr uint32_t kCell = sizeof(Cells);
    const uint32_t stride = ctx_.nthr * kCell;
    RINGCOMM_NO_UNROLL
    for (uint32_t at = ctx_.tid * kCell; at < p.bytes; at += stride) {
      const uint32_t bytes = p.bytes - at < kCell ? p.bytes - at : kCell;
      const auto read = [&](int k, Accumulator<Format>& a) {
        Cells cell;
        if (!load(k, at, bytes, cell)) return false;
        if constexpr (Format::kScales)
          if (shared_.source_scaled[k]) cell = scaled(cell);
        Format::read(cell, a.lane, call_.variant);
        return true;
      };
      Accumulator<Format> all;
      if (!tree(static_cast<ReduceOp>(call_.op), sources, read, call_.variant, all)) return false;
      if (divisor != 0) {
        RINGCOMM_UNROLL
        for (int i = 0; i < Format::kLanes; ++i) all.lane[i] = divided(all.lane[i], divisor, call_.variant);
      }
      store(targets, at, bytes, Format::write(all.lane, call_.variant));
    }
    return true;
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

  // Signalling.

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

  Context& ctx_;
  const KernelCall& call_;
  const TableView table_;
  BlockShared& shared_;
  const uint64_t started_;
  int32_t step_ = 0;
};

}  // namespace ringcomm::cuda
