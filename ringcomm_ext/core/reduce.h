// Element-wise reductions. No communication, no allocation, no locks; any thread.
#pragma once

#include "core/types.h"

namespace ringcomm {

// dst[i] = all of src[0][i], ..., src[nsrc - 1][i] combined by op, for i < count; nsrc >= 2, count may be 0.
//
// Order: one binary tree over the sources, split at the largest power of two below their number, the earlier part left
// of op: a op b, (a op b) op c, (a op b) op (c op d), ((a op b) op (c op d)) op e. docs/numerics.md says what for.
//
// dst may be exactly one of the sources, whichever (in place), but may not overlap one in any other way. No alignment
// is assumed, not even the element's own. Sources that are not dst are never written, nor a byte outside dst.
//
// The bits of a result depend on the inputs and their order only, never on the instruction set, the alignment or the
// position in the buffer:
//   16-bit floats   all sources are widened to float32, combined, and rounded once (to nearest even, subnormals kept).
//                   Same bits everywhere needs the processor's flushing of subnormals off, as it is by default
//                   (torch.set_flush_denormal): not all conversions obey that switch.
//   sum, product    in the element's type (float32 for 16-bit floats), nothing contracted; integers wrap.
//   avg             the accumulated sum divided by `divisor` (>= 1; the number of ranks; unused by other operations):
//                   floats truly divide before the one rounding; integers truncate the wrapped sum toward zero.
//   min, max        one NaN makes the result NaN, as torch.minimum and torch.maximum. Equal values keep the earlier
//                   source, which matters for -0.0 and +0.0 only.
//   NaN             every NaN result is the positive quiet NaN without payload: hardware would pick one of several
//                   payloads by operand order, which compilers are free to swap.
//   bool            any byte but 0 is true. sum, max, bor are OR; product, min, band are AND; bxor is XOR. Results are
//                   0 or 1.
using ReduceFn = void (*)(void* dst, const void* const* src, int nsrc, size_t count, int divisor);

// nullptr where the pair makes no sense: bitwise operations on floats, avg on bool, dtype `other`, op `none`.
ReduceFn reduce_function(DType dtype, ReduceOp op);

// Between 16-bit floats and float32. `widen` is exact (a NaN may come out as another NaN). `narrow` rounds once, to
// nearest even, and every NaN to the NaN above: the bits that a reduction of 16-bit floats would have given. Any
// alignment of the 16-bit side; the two sides may not overlap.
struct HalfConversion {
  void (*widen)(float* dst, const void* src, size_t count);
  void (*narrow)(void* dst, const float* src, size_t count);
};

// nullptr for all but float16 and bfloat16.
const HalfConversion* half_conversion(DType dtype);

// Which instruction set the process uses: "avx512_bf16", "avx512", "avx2" or "generic". Chosen once from the processor,
// or by RINGCOMM_ISA (core/isa.h).
const char* reduce_isa();

}  // namespace ringcomm
