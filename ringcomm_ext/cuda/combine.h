// The short kernel of `memop` mode: one step's arithmetic without its waits (combine_call.h says what it does). One header for nvcc and g++. The stream's flags are before and
// behind it, so its threads need no order among each other, and a cell is read and written by one thread: a target may be a source.
#pragma once

#include "cuda/operations.h"

namespace ringcomm::cuda {

template <class Format, class Context>
RINGCOMM_DEVICE void combine(const Context& ctx, const CombineCall& call) {
  using Cells = typename Format::Cells;
  constexpr uint32_t kCell = sizeof(Cells);
  const uint64_t bytes = call.count * (kCell / Format::kLanes);
  const uint64_t stride = static_cast<uint64_t>(ctx.nblk) * ctx.nthr * kCell;
  RINGCOMM_NO_UNROLL
  for (uint64_t at = (static_cast<uint64_t>(ctx.blk) * ctx.nthr + ctx.tid) * kCell; at < bytes; at += stride) {
    const uint32_t here = bytes - at < kCell ? static_cast<uint32_t>(bytes - at) : kCell;
    const auto read = [&](int k, Accumulator<Format>& a) {
      Cells cell = load_cell<kCell>(call.sources[k] + at, here);
      if constexpr (Format::kScales)
        if (call.scaled[k / 64] >> (k % 64) & 1) cell = scaled<Format>(cell, call.factor, call.variant);
      Format::read(cell, a.lane, call.variant);
      return true;
    };
    Accumulator<Format> all;
    tree(static_cast<ReduceOp>(call.op), call.nsources, read, call.variant, all);
    if (call.divisor != 0) divide(all, call.divisor, call.variant);
    const Cells result = Format::write(all.lane, call.variant);
    RINGCOMM_NO_UNROLL
    for (int k = 0; k < call.ntargets; ++k) store_cell(call.targets[k] + at, result, here);
  }
}

}  // namespace ringcomm::cuda
