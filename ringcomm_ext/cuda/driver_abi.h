// What this project uses of the binary interface of libcuda.so.1, the CUDA driver API, declared by ourselves, so that building needs no toolkit. Source of all: cuda.h
// of CUDA 13.0; tests/native/cuda_driver_test.cpp compares numbers, sizes, parameters and exported names with that header where one is installed.
//
// Exported names carry versions that cuda.h hides behind macros (cuMemAlloc is cuMemAlloc_v2). The newest here are the memops cuStreamWriteValue32_v2 and
// cuStreamWaitValue32_v2, of CUDA 11.7: an older driver is refused.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringcomm::cu {

enum Result : int {  // CUresult
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kMapFailed = 205,
  kNoBinaryForGpu = 209,
  kPeerAccessUnsupported = 217,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kNotSupported = 801,
  kSystemDriverMismatch = 803,
  kCaptureUnsupported = 900,
  kUnknown = 999,
};

using Device = int;          // CUdevice: an ordinal, after CUDA_VISIBLE_DEVICES
using DevicePtr = uint64_t;  // CUdeviceptr, unsigned long long there
struct Context;              // CUcontext and so on point to these
struct Module;
struct Function;
struct Stream;
struct Event;

struct Uuid {  // CUuuid
  uint8_t bytes[16];
};
struct IpcMemHandle {  // CUipcMemHandle, passed by value
  uint8_t reserved[64];
};

enum Attribute : int {  // CUdevice_attribute
  kMultiprocessorCount = 16,
  kCanMapHostMemory = 19,
  kComputeMode = 20,
  kPciBusId = 33,
  kPciDeviceId = 34,
  kAsyncEngineCount = 40,
  kUnifiedAddressing = 41,
  kPciDomainId = 50,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
};
inline constexpr int kComputeModeExclusiveProcess = 3;  // CU_COMPUTEMODE_EXCLUSIVE_PROCESS: one process per device

enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };   // CUstreamCaptureStatus
enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };  // CUstreamCaptureMode

inline constexpr unsigned kStreamNonBlocking = 1;      // CU_STREAM_NON_BLOCKING: not ordered with the null stream
inline constexpr unsigned kEventDisableTiming = 2;     // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kHostAllocPortable = 1;      // CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kHostAllocDeviceMap = 2;     // CU_MEMHOSTALLOC_DEVICEMAP
inline constexpr unsigned kHostRegisterPortable = 1;   // CU_MEMHOSTREGISTER_PORTABLE
inline constexpr unsigned kHostRegisterDeviceMap = 2;  // CU_MEMHOSTREGISTER_DEVICEMAP
inline constexpr unsigned kIpcLazyPeerAccess = 1;      // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only value allowed
inline constexpr unsigned kWaitGreaterEqual = 0;       // CU_STREAM_WAIT_VALUE_GEQ: (int32_t)(*address - value) >= 0
inline constexpr unsigned kWriteDefault = 0;           // CU_STREAM_WRITE_VALUE_DEFAULT: after all earlier writes

// Every function in use: member of the table, exported name, parameters. The results are of type Result.
// clang-format off
#define RINGCOMM_CUDA_FUNCTIONS(F)                                                                                     \
  F(init, cuInit, (unsigned flags))                                                                                    \
  F(driver_version, cuDriverGetVersion, (int* version))                                                                \
  F(error_name, cuGetErrorName, (Result result, const char** text))                                                    \
  F(error_string, cuGetErrorString, (Result result, const char** text))                                                \
  F(device_count, cuDeviceGetCount, (int* count))                                                                      \
  F(device_get, cuDeviceGet, (Device* device, int ordinal))                                                            \
  F(device_name, cuDeviceGetName, (char* name, int size, Device device))                                               \
  F(device_uuid, cuDeviceGetUuid_v2, (Uuid* uuid, Device device))                                                      \
  F(device_attribute, cuDeviceGetAttribute, (int* value, Attribute attribute, Device device))                          \
  F(can_access_peer, cuDeviceCanAccessPeer, (int* can, Device device, Device peer))                                    \
  F(context_retain, cuDevicePrimaryCtxRetain, (Context** context, Device device))                                      \
  F(context_release, cuDevicePrimaryCtxRelease_v2, (Device device))                                                    \
  F(context_get_current, cuCtxGetCurrent, (Context** context))                                                         \
  F(context_set_current, cuCtxSetCurrent, (Context* context))                                                          \
  F(module_load, cuModuleLoadData, (Module** module, const void* image))                                               \
  F(module_unload, cuModuleUnload, (Module* module))                                                                   \
  F(module_function, cuModuleGetFunction, (Function** function, Module* module, const char* name))                     \
  F(launch, cuLaunchKernel,                                                                                            \
    (Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,        \
     unsigned block_z, unsigned shared_bytes, Stream* stream, void** parameters, void** extra))                        \
  F(mem_alloc, cuMemAlloc_v2, (DevicePtr* pointer, size_t bytes))                                                      \
  F(mem_free, cuMemFree_v2, (DevicePtr pointer))                                                                       \
  F(mem_range, cuMemGetAddressRange_v2, (DevicePtr* base, size_t* bytes, DevicePtr pointer))                           \
  F(host_alloc, cuMemHostAlloc, (void** pointer, size_t bytes, unsigned flags))                                        \
  F(host_free, cuMemFreeHost, (void* pointer))                                                                         \
  F(host_register, cuMemHostRegister_v2, (void* pointer, size_t bytes, unsigned flags))                                \
  F(host_unregister, cuMemHostUnregister, (void* pointer))                                                             \
  F(host_device_pointer, cuMemHostGetDevicePointer_v2, (DevicePtr* pointer, void* host, unsigned flags))               \
  F(copy, cuMemcpyAsync, (DevicePtr to, DevicePtr from, size_t bytes, Stream* stream))                                 \
  F(set_bytes, cuMemsetD8Async, (DevicePtr to, unsigned char value, size_t bytes, Stream* stream))                     \
  F(ipc_get, cuIpcGetMemHandle, (IpcMemHandle* handle, DevicePtr base))                                                \
  F(ipc_open, cuIpcOpenMemHandle_v2, (DevicePtr* pointer, IpcMemHandle handle, unsigned flags))                        \
  F(ipc_close, cuIpcCloseMemHandle, (DevicePtr pointer))                                                               \
  F(stream_create, cuStreamCreate, (Stream** stream, unsigned flags))                                                  \
  F(stream_destroy, cuStreamDestroy_v2, (Stream* stream))                                                              \
  F(stream_query, cuStreamQuery, (Stream* stream))                                                                     \
  F(stream_wait_event, cuStreamWaitEvent, (Stream* stream, Event* event, unsigned flags))                              \
  F(stream_capturing, cuStreamIsCapturing, (Stream* stream, CaptureStatus* status))                                    \
  F(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (CaptureMode* mode))                                     \
  F(write_value, cuStreamWriteValue32_v2, (Stream* stream, DevicePtr address, uint32_t value, unsigned flags))         \
  F(wait_value, cuStreamWaitValue32_v2, (Stream* stream, DevicePtr address, uint32_t value, unsigned flags))           \
  F(event_create, cuEventCreate, (Event** event, unsigned flags))                                                      \
  F(event_record, cuEventRecord, (Event* event, Stream* stream))                                                       \
  F(event_query, cuEventQuery, (Event* event))                                                                         \
  F(event_destroy, cuEventDestroy_v2, (Event* event))
// clang-format on

// The functions, as the library has them.
struct Table {
#define RINGCOMM_MEMBER(member, name, parameters) Result(*member) parameters;
  RINGCOMM_CUDA_FUNCTIONS(RINGCOMM_MEMBER)
#undef RINGCOMM_MEMBER
};

}  // namespace ringcomm::cu
