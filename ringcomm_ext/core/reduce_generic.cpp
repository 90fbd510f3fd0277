// The reductions for any processor: what the compiler's baseline offers (SSE2 on x86-64, NEON on aarch64).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#else
#pragma STDC FP_CONTRACT OFF
#endif

#include "core/reduce_tables.h"

#define RINGCOMM_VECTOR_BYTES 16
#define RINGCOMM_F16C 0
#define RINGCOMM_BF16 0

namespace ringcomm::generic {
namespace {
// clang-format off: in this order
#include "core/reduce_formats.inc"
#include "core/reduce_tree.inc"
#include "core/reduce_convert.inc"
#include "core/reduce_kernels.inc"
// clang-format on
}  // namespace
const ReduceTable table = make_table();
}  // namespace ringcomm::generic
