// The table of driver functions: each has the signature that CUDA's own header gives it, where that is installed; a library that is none is refused with its reason.
#include "cuda/driver.h"

#include <type_traits>

#include "check.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#define HEADER 1
#elif __has_include("/usr/local/cuda/include/cuda.h")
#include "/usr/local/cuda/include/cuda.h"
#define HEADER 1
#else
#define HEADER 0
#endif

using namespace ringcomm;
using namespace ringcomm::cuda;
using namespace ringcomm::test;

namespace {

#if HEADER
// Arguments pass alike where they are as large and of one sort: numbers (enums among them), pointers, structures.
template <class Ours, class Theirs>
constexpr bool alike() {
  if (sizeof(Ours) != sizeof(Theirs) || std::is_pointer_v<Ours> != std::is_pointer_v<Theirs>) return false;
  return std::is_class_v<Ours> == std::is_class_v<Theirs>;
}
template <class... Ours, class... Theirs>
constexpr bool same_signature(cu::Result (*)(Ours...), CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs))
    return false;
  else
    return (alike<Ours, Theirs>() && ...);
}
// Only types: nothing of the header is linked.
#define RINGCOMM_SAME(member, symbol, types) \
  static_assert(same_signature(decltype(Driver::member){}, static_cast<decltype(&::symbol)>(nullptr)), #symbol);
RINGCOMM_DRIVER_FUNCTIONS(RINGCOMM_SAME)

static_assert(cu::kSuccess == CUDA_SUCCESS && cu::kNotReady == CUDA_ERROR_NOT_READY &&
              cu::kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(cu::kMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(cu::kUnifiedAddressing == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
static_assert(cu::kComputeMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(cu::kComputeMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(cu::kGpuDirectRdma == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
static_assert(cu::kRdmaWritesOrdering == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
static_assert(cu::kDmaBuf == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(cu::kIpcLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
static_assert(cu::kHostPortable == CU_MEMHOSTALLOC_PORTABLE && cu::kHostMapped == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(cu::kEventDisableTiming == CU_EVENT_DISABLE_TIMING && cu::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(cu::kWaitGreaterOrEqual == CU_STREAM_WAIT_VALUE_GEQ &&
              cu::kWriteDefault == CU_STREAM_WRITE_VALUE_DEFAULT);
static_assert(cu::kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(sizeof(cu::Uuid) == sizeof(CUuuid) && sizeof(cu::IpcHandle) == sizeof(CUipcMemHandle));
#endif

std::string refusal(const char* library) {
  Driver driver;
  std::string why_not;
  CHECK(!open_driver(library, driver, why_not));
  return why_not;
}

}  // namespace

int main() {
  start("cuda_driver_test", 60);
  section(HEADER ? "signatures and constants are those of cuda.h"
                 : "no cuda.h here: signatures and constants are not compared");
  section("libraries that are no driver");
  CHECK_CONTAINS(refusal("libno-such-driver.so.1"), "libno-such-driver.so.1 cannot be opened (");
  CHECK_CONTAINS(refusal("libc.so.6"), "libc.so.6 has no cuInit: the driver is too old");
  section("errors without a driver to name them");
  CHECK_EQ(Driver{}.text(2), "CUresult (2)");
  return 0;
}
