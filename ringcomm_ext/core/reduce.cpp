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

namespace {

const ReduceTable& chosen_table() {
  static const ReduceTable* const table = reduce_table(chosen_isa());
  return *table;
}

}  // namespace

ReduceFn reduce_function(DType dtype, ReduceOp op) {
  const int t = static_cast<int>(dtype), o = static_cast<int>(op);
  if (t >= kReducibleDTypes || o >= kReduceOps) return nullptr;
  return chosen_table().fn[t][o];
}

const HalfConversion* half_conversion(DType dtype) {
  if (dtype == DType::float16) return &chosen_table().float16;
  return dtype == DType::bfloat16 ? &chosen_table().bfloat16 : nullptr;
}

const char* reduce_isa() { return name(chosen_isa()); }

}  // namespace ringcomm
