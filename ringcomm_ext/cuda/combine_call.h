// The parameter of the short kernels of `memop` mode (enqueuer.h): some pieces of memory combined into one value that goes to some places. Plain data, the same for nvcc
// and g++.
//
// A kernel "ringcomm_combine_<family>" takes it: for each element i < count, the tree of core/reduce.h over sources[0..nsources) in their order, each first multiplied by
// `factor`, rounded, where its bit in `scaled` is set; divided by `divisor` where that is not 0; stored to every target. One source is only scaled. A target may be one of
// the sources.
#pragma once

#include <cstdint>

namespace ringcomm::cuda {

inline constexpr int kMostCombined = 128;       // sources of one step
inline constexpr int kMostCombineTargets = 32;  // its destination, and a slot for each sender

struct CombineCall {
  const char* sources[kMostCombined];
  char* targets[kMostCombineTargets];
  uint64_t scaled[kMostCombined / 64];  // bit k % 64 of word k / 64
  uint64_t count;                       // elements
  double factor;
  int32_t nsources, ntargets;
  uint32_t op;       // ReduceOp
  uint32_t variant;  // of the kernel
  uint32_t divisor;
  uint32_t reserved;
};
static_assert(sizeof(CombineCall) == 1336);  // a kernel's parameters may have 4 KiB on every device

}  // namespace ringcomm::cuda
