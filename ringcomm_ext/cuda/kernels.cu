// The kernels of kernels.fatbin: one per family of formats (kernels.h), the same source as the tests run on the host. Compiled with -fmad=false: sums and products keep
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

}  // namespace ringcomm::cuda
