// The kernels of kernels.fatbin: for each family of formats (kernels.h) the interpreter and, where it reduces, the short one; the same source as the tests run on the host. Compiled with -fmad=false: sums and products keep
// the host's roundings.
#include "cuda/families.h"

namespace ringcomm::cuda {

inline constexpr int kThreads = 512;  // at most, in a block: 128 registers a thread

#define RINGCOMM_KERNEL(name, Format)                                                                              \
  extern "C" __global__ void __launch_bounds__(kThreads) ringcomm_##name(const __grid_constant__ KernelCall call) { \
    __shared__ BlockShared shared;                                                                                 \
    DeviceContext<BlockShared> context(&shared);                                                                   \
    KernelInterpreter<Format, DeviceContext<BlockShared>>(context, call).run();                                    \
  }

RINGCOMM_FAMILIES(RINGCOMM_KERNEL)

// Nothing that a block shares.
struct None {};

#define RINGCOMM_COMBINE(name, Format)                                                                        \
  extern "C" __global__ void __launch_bounds__(kThreads)                                                     \
      ringcomm_combine_##name(const __grid_constant__ CombineCall call) {                                     \
    combine<Format>(DeviceContext<None>(nullptr), call);                                                      \
  }

RINGCOMM_REDUCING_FAMILIES(RINGCOMM_COMBINE)

}  // namespace ringcomm::cuda
