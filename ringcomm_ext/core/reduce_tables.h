// The kernels of each instruction set side by side: for the dispatch and for the test that compares them.
#pragma once

#include "core/isa.h"
#include "core/reduce.h"

namespace ringcomm {

struct ReduceTable {
  ReduceFn fn[kReducibleDTypes][kReduceOps];
  HalfConversion float16, bfloat16;
};

// Defined by the unit compiled for that instruction set; only where RINGCOMM_X86_KERNELS for all but the first.
namespace generic {
extern const ReduceTable table;
}
namespace avx2 {
extern const ReduceTable table;
}
namespace avx512 {
extern const ReduceTable table;
}
namespace avx512_bf16 {
extern const ReduceTable table;
}

// nullptr where supported(isa) is false.
const ReduceTable* reduce_table(Isa isa);

}  // namespace ringcomm
