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

#include "cuda/kernel_ends.h"
#include "cuda/operations.h"

namespace ringcomm::cuda {

template <class Format, class Context>
class KernelInterpreter {
 public:
  RINGCOMM_DEVICE KernelInterpreter(Context& ctx, const KernelCall& call)
      : ctx_(ctx), call_(call), table_(call.program), shared_(ctx.shared()), ends_(ctx, call) {}

  RINGCOMM_DEVICE void run() {
    if (ctx_.tid == 0) st_relaxed_sys(&shared_.failed, 0);
    ctx_.sync_any(false);
    const uint64_t turns = call_.loops == 0 ? 0 : call_.loops + static_cast<uint64_t>(table_.header().max_lag);
    RINGCOMM_NO_UNROLL
    for (uint64_t turn = 0; turn < turns; ++turn) {
      RINGCOMM_NO_UNROLL
      for (int32_t step = 0; step < table_.header().nsteps; ++step) {
        ends_.at_step(step);
        if (!run_step(table_.step(step), turn)) return;
      }
    }
    if ((table_.header().flags & kFlagDrain) && turns > 0) ends_.wait_for_readers();
  }

 private:
  using Cells = typename Format::Cells;

  RINGCOMM_DEVICE bool piece_of(const PackedStep& s, uint64_t turn, Piece& p) const {
    const uint64_t lag = static_cast<uint64_t>(s.lag);
    if (turn < lag) return false;
    const uint64_t first = (turn - lag) * call_.piece, count = ends_.chunk(s.chunk).count;
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
    bool good = ends_.wait_sources(s, p);
    good = ends_.wait_targets(s, p, good, targets) && good;
    if (ctx_.sync_any(!good)) return false;
    good = act(s, p, targets);
    ends_.move_on(s);
#ifndef RINGCOMM_PLANTED_MISSING_BARRIER  // cuda_barrier_planted.cpp: signals overtake what other threads of the block still do
    if (ctx_.sync_any(!good)) return false;
#endif
    ends_.signal(s, p);
    return true;
  }

  RINGCOMM_DEVICE bool act(const PackedStep& s, const Piece& p, int targets) {
    if (ends_.low_latency() && !ends_.exchange_tags(s, p, targets)) return false;
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

  template <uint32_t kBytes>
  RINGCOMM_DEVICE bool load(int k, uint32_t at, uint32_t bytes, Cell<kBytes>& cell) {
    if (shared_.source_flag[k] != 0) return ends_.await_flagged(k, at, bytes, cell);
    cell = load_cell<kBytes>(shared_.source[k] + at, bytes);
    return true;
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
          if (shared_.source_scaled[k]) cell = scaled<Format>(cell, call_.factor, call_.variant);
        Format::read(cell, a.lane, call_.variant);
        return true;
      };
      Accumulator<Format> all;
      if (!tree(static_cast<ReduceOp>(call_.op), sources, read, call_.variant, all)) return false;
      if (divisor != 0) divide(all, divisor, call_.variant);
      store(targets, at, bytes, Format::write(all.lane, call_.variant));
    }
    return true;
  }

  Context& ctx_;
  const KernelCall& call_;
  const TableView table_;
  BlockShared& shared_;
  KernelEnds<Context> ends_;
};

}  // namespace ringcomm::cuda
