// The reductions for AVX-512 with AVX512_BF16, which halves the work of rounding to bfloat16.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// Before any include, so that the intrinsics see the target and one set of compiler flags serves all units. Nothing
// included below may define an inline function with external linkage: the linker could pick this unit's copy of it
// for code that runs on a lesser processor.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,f16c,prefer-vector-width=512")
#pragma GCC optimize("fp-contract=off")

#include <immintrin.h>

#include "core/reduce_tables.h"

#define RINGCOMM_VECTOR_BYTES 64
#define RINGCOMM_F16C 1
#define RINGCOMM_BF16 1

namespace ringcomm::avx512_bf16 {
namespace {
// clang-format off: in this order
#include "core/reduce_formats.inc"
#include "core/reduce_tree.inc"
#include "core/reduce_convert.inc"
#include "core/reduce_kernels.inc"
// clang-format on
}  // namespace
const ReduceTable table = make_table();
}  // namespace ringcomm::avx512_bf16

#endif
