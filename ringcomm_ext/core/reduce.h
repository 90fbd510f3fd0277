// Element-wise reductions. No communication, no allocation, any thread.
#pragma once

#include "core/types.h"

namespace ringcomm {

// dst[i] = src[0][i] op src[1][i] op ... in that order, for i < count; nsrc >= 2. dst may be exactly one of the sources
// (element-wise in place) but may not overlap one otherwise. No alignment is assumed beyond the element's own size... nor even that.
// 16-bit floats: all sources are widened to float32, combined, and rounded once (nearest even, NaN kept).
// `divisor`: used by avg only (the number of ranks): floats divide the accumulated value before the rounding; integers
// truncate toward zero; bool avg is not defined (valid() says no).
// min and max propagate NaN as torch does. bool: sum, max, bor are OR; product, min, band are AND; bxor is XOR; results are 0 or 1.
// Integer sums and products wrap.
using ReduceFn = void (*)(void* dst, const void* const* src, int nsrc, size_t count, int divisor);

// nullptr where the pair makes no sense (bitwise ops on floats, avg on bool, dtype `other`).
ReduceFn reduce_function(DType dtype, ReduceOp op);

// Which instruction set the process uses: "avx512", "avx2", "generic". Chosen once from the CPU, or by RINGCOMM_ISA.
const char* reduce_isa();

}  // namespace ringcomm
