// Our declarations of the CUDA driver's interface (cuda/driver_abi.h) against the toolkit's own header, where that is installed: numbers, sizes, parameters, and the
// names that are really exported.
#include "cuda/driver_abi.h"

#include <cstdio>

#if __has_include(<cuda.h>)
#include <cuda.h>
#elif __has_include("/usr/local/cuda/include/cuda.h")
#include "/usr/local/cuda/include/cuda.h"
#endif

#ifdef CUDA_VERSION
#include <string_view>
#include <type_traits>

#include "check.h"

using namespace ringcomm;

// Passed in the same way: pointers as pointers, numbers of the same size, structures of the same size and alignment.
template <typename A, typename B>
constexpr bool alike() {
  constexpr bool number_a = std::is_integral_v<A> || std::is_enum_v<A>;
  constexpr bool number_b = std::is_integral_v<B> || std::is_enum_v<B>;
  return std::is_pointer_v<A> == std::is_pointer_v<B> && number_a == number_b && sizeof(A) == sizeof(B) &&
         alignof(A) == alignof(B);
}
template <typename R, typename... A, typename S, typename... B>
constexpr bool alike_calls(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B))
    return alike<R, S>() && (... && alike<A, B>());
  else
    return false;
}

constexpr std::string_view exported(std::string_view member) {
#define EXPORTED(ours, name, parameters) \
  if (member == #ours) return #name;
  RINGCOMM_CUDA_FUNCTIONS(EXPORTED)
#undef EXPORTED
  return "";
}

// The header's macros make of the name the one that is exported.
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define SAME_CALL(ours, theirs)                                                                       \
  static_assert(alike_calls(decltype(cu::Table::ours)(nullptr), decltype (&theirs)(nullptr)), #ours); \
  CHECK_EQ(exported(#ours), std::string_view(TEXT(theirs)));                                          \
  ++compared

#define SAME(ours, theirs) static_assert(static_cast<int>(cu::ours) == static_cast<int>(theirs), #ours)

SAME(kSuccess, CUDA_SUCCESS);
SAME(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME(kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
SAME(kNoDevice, CUDA_ERROR_NO_DEVICE);
SAME(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
SAME(kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
SAME(kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME(kMapFailed, CUDA_ERROR_MAP_FAILED);
SAME(kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
SAME(kIllegalState, CUDA_ERROR_ILLEGAL_STATE);
SAME(kNotFound, CUDA_ERROR_NOT_FOUND);
SAME(kNotReady, CUDA_ERROR_NOT_READY);
SAME(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
SAME(kSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME(kCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(kUnknown, CUDA_ERROR_UNKNOWN);
SAME(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(kCanMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
SAME(kComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
SAME(kPciBusId, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME(kPciDeviceId, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME(kAsyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
SAME(kUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(kPciDomainId, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(kComputeModeExclusiveProcess, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
SAME(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(kCaptureInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
SAME(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
SAME(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
SAME(kHostAllocDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP);
SAME(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
SAME(kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(kWaitGreaterEqual, CU_STREAM_WAIT_VALUE_GEQ);
SAME(kWriteDefault, CU_STREAM_WRITE_VALUE_DEFAULT);
static_assert(alike<cu::Uuid, CUuuid>() && alike<cu::IpcMemHandle, CUipcMemHandle>());
static_assert(std::is_same_v<std::make_unsigned_t<CUdeviceptr>, CUdeviceptr> && alike<cu::DevicePtr, CUdeviceptr>());

int main() {
  int compared = 0;
  SAME_CALL(init, cuInit);
  SAME_CALL(driver_version, cuDriverGetVersion);
  SAME_CALL(error_name, cuGetErrorName);
  SAME_CALL(error_string, cuGetErrorString);
  SAME_CALL(device_count, cuDeviceGetCount);
  SAME_CALL(device_get, cuDeviceGet);
  SAME_CALL(device_name, cuDeviceGetName);
#if CUDA_VERSION >= 13000  // before, the name stood for the version without partitions of a device
  SAME_CALL(device_uuid, cuDeviceGetUuid);
#else
  SAME_CALL(device_uuid, cuDeviceGetUuid_v2);
#endif
  SAME_CALL(device_attribute, cuDeviceGetAttribute);
  SAME_CALL(can_access_peer, cuDeviceCanAccessPeer);
  SAME_CALL(context_retain, cuDevicePrimaryCtxRetain);
  SAME_CALL(context_release, cuDevicePrimaryCtxRelease);
  SAME_CALL(context_get_current, cuCtxGetCurrent);
  SAME_CALL(context_set_current, cuCtxSetCurrent);
  SAME_CALL(module_load, cuModuleLoadData);
  SAME_CALL(module_unload, cuModuleUnload);
  SAME_CALL(module_function, cuModuleGetFunction);
  SAME_CALL(launch, cuLaunchKernel);
  SAME_CALL(mem_alloc, cuMemAlloc);
  SAME_CALL(mem_free, cuMemFree);
  SAME_CALL(mem_range, cuMemGetAddressRange);
  SAME_CALL(host_alloc, cuMemHostAlloc);
  SAME_CALL(host_free, cuMemFreeHost);
  SAME_CALL(host_register, cuMemHostRegister);
  SAME_CALL(host_unregister, cuMemHostUnregister);
  SAME_CALL(host_device_pointer, cuMemHostGetDevicePointer);
  SAME_CALL(copy, cuMemcpyAsync);
  SAME_CALL(set_bytes, cuMemsetD8Async);
  SAME_CALL(ipc_get, cuIpcGetMemHandle);
  SAME_CALL(ipc_open, cuIpcOpenMemHandle);
  SAME_CALL(ipc_close, cuIpcCloseMemHandle);
  SAME_CALL(stream_create, cuStreamCreate);
  SAME_CALL(stream_destroy, cuStreamDestroy);
  SAME_CALL(stream_query, cuStreamQuery);
  SAME_CALL(stream_wait_event, cuStreamWaitEvent);
  SAME_CALL(stream_capturing, cuStreamIsCapturing);
  SAME_CALL(exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
  SAME_CALL(write_value, cuStreamWriteValue32);
  SAME_CALL(wait_value, cuStreamWaitValue32);
  SAME_CALL(event_create, cuEventCreate);
  SAME_CALL(event_record, cuEventRecord);
  SAME_CALL(event_query, cuEventQuery);
  SAME_CALL(event_destroy, cuEventDestroy);
  CHECK_EQ(static_cast<size_t>(compared), sizeof(cu::Table) / sizeof(void*));
  std::printf("cuda_abi_test: %d functions compared with <cuda.h> of CUDA %d.%d\n", compared, CUDA_VERSION / 1000,
              CUDA_VERSION % 1000 / 10);
  return 0;
}
#else
int main() {
  std::puts("cuda_abi_test: skipped: no <cuda.h> in the include path or /usr/local/cuda/include");
  return 0;
}
#endif
