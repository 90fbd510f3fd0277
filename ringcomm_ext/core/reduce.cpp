#include "core/reduce.h"

#include "core/reduce_tables.h"

namespace ringcomm {

const ReduceTable* reduce_table(Isa isa) {
  if (!supported(isa)) return nullptr;
#if RINGCOMM_X86_KERNELS
  if (isa == Isa::avx512_bf16) return &avx512_bf16::table;
  if (isa == Isa::avx512) return &avx512::table;
  if (isa == Isa::avx2) return &avx2::table;
#endif
  return &generic::table;
}

ReduceFn reduce_function(DType dtype, ReduceOp op) {
  static const ReduceTable* const table = reduce_table(chosen_isa());
  const int t = static_cast<int>(dtype), o = static_cast<int>(op);
  if (t >= kReducibleDTypes || o >= kReduceOps) return nullptr;
  return table->fn[t][o];
}

const char* reduce_isa() { return name(chosen_isa()); }

}  // namespace ringcomm
