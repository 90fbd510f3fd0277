// The CUDA driver, opened at run time: one table of functions, or why there is none. No other file knows how it is found; the library's path is a setting, so that tests
// can bring a driver of their own. There is no CUDA runtime anywhere: no version of it to agree with torch's.
//
// Any thread. A thread that calls anything on a device first makes the device's primary context current (Current below): torch has that context too.
#pragma once

#include <string>

#include "cuda/driver_abi.h"

namespace ringcomm::cuda {

// The exported functions in use: name in this table, name in the library, types. As drivers of CUDA 12.0 and later have them.
#define RINGCOMM_DRIVER_FUNCTIONS(X)                                                                                  \
  X(init, cuInit, (unsigned flags))                                                                                   \
  X(driver_version, cuDriverGetVersion, (int* version))                                                               \
  X(error_name, cuGetErrorName, (cu::Result result, const char** text))                                               \
  X(error_string, cuGetErrorString, (cu::Result result, const char** text))                                           \
  X(device_count, cuDeviceGetCount, (int* count))                                                                     \
  X(device_get, cuDeviceGet, (cu::Device * device, int ordinal))                                                      \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, cu::Device device))                           \
  X(device_uuid, cuDeviceGetUuid_v2, (cu::Uuid * uuid, cu::Device device))                                            \
  X(can_access_peer, cuDeviceCanAccessPeer, (int* can, cu::Device device, cu::Device peer))                           \
  X(primary_retain, cuDevicePrimaryCtxRetain, (cu::Context * *context, cu::Device device))                            \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (cu::Device device))                                               \
  X(set_current, cuCtxSetCurrent, (cu::Context * context))                                                            \
  X(get_current, cuCtxGetCurrent, (cu::Context * *context))                                                           \
  X(enable_peer, cuCtxEnablePeerAccess, (cu::Context * peer, unsigned flags))                                         \
  X(alloc, cuMemAlloc_v2, (cu::Pointer * memory, size_t bytes))                                                       \
  X(free, cuMemFree_v2, (cu::Pointer memory))                                                                         \
  X(address_range, cuMemGetAddressRange_v2, (cu::Pointer * base, size_t* bytes, cu::Pointer memory))                  \
  X(host_alloc, cuMemHostAlloc, (void** memory, size_t bytes, unsigned flags))                                        \
  X(host_free, cuMemFreeHost, (void* memory))                                                                         \
  X(host_pointer, cuMemHostGetDevicePointer_v2, (cu::Pointer * device, void* host, unsigned flags))                   \
  X(fill, cuMemsetD8Async, (cu::Pointer memory, unsigned char value, size_t bytes, cu::Stream* stream))               \
  X(copy, cuMemcpyAsync, (cu::Pointer to, cu::Pointer from, size_t bytes, cu::Stream* stream))                        \
  X(ipc_export, cuIpcGetMemHandle, (cu::IpcHandle * handle, cu::Pointer memory))                                      \
  X(ipc_open, cuIpcOpenMemHandle_v2, (cu::Pointer * memory, cu::IpcHandle handle, unsigned flags))                    \
  X(ipc_close, cuIpcCloseMemHandle, (cu::Pointer memory))                                                             \
  X(module_load, cuModuleLoadData, (cu::Module * *module, const void* image))                                         \
  X(module_unload, cuModuleUnload, (cu::Module * module))                                                             \
  X(module_function, cuModuleGetFunction, (cu::Function * *function, cu::Module * module, const char* name))          \
  X(launch, cuLaunchKernel,                                                                                           \
    (cu::Function * function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
     unsigned block_z, unsigned shared_bytes, cu::Stream* stream, void** parameters, void** extra))                   \
  X(stream_create, cuStreamCreate, (cu::Stream * *stream, unsigned flags))                                            \
  X(stream_destroy, cuStreamDestroy_v2, (cu::Stream * stream))                                                        \
  X(stream_query, cuStreamQuery, (cu::Stream * stream))                                                               \
  X(stream_wait, cuStreamSynchronize, (cu::Stream * stream))                                                          \
  X(stream_capturing, cuStreamIsCapturing, (cu::Stream * stream, int* status))                                        \
  X(stream_wait_event, cuStreamWaitEvent, (cu::Stream * stream, cu::Event * event, unsigned flags))                   \
  X(stream_write, cuStreamWriteValue32_v2, (cu::Stream * stream, cu::Pointer at, uint32_t value, unsigned flags))     \
  X(stream_wait_value, cuStreamWaitValue32_v2, (cu::Stream * stream, cu::Pointer at, uint32_t value, unsigned flags)) \
  X(event_create, cuEventCreate, (cu::Event * *event, unsigned flags))                                                \
  X(event_record, cuEventRecord, (cu::Event * event, cu::Stream * stream))                                            \
  X(event_query, cuEventQuery, (cu::Event * event))                                                                   \
  X(event_destroy, cuEventDestroy_v2, (cu::Event * event))

struct Driver {
#define RINGCOMM_DRIVER_MEMBER(member, symbol, types) cu::Result(*member) types = nullptr;
  RINGCOMM_DRIVER_FUNCTIONS(RINGCOMM_DRIVER_MEMBER)
#undef RINGCOMM_DRIVER_MEMBER

  // "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"; any number.
  std::string text(cu::Result result) const;
};

inline constexpr const char* kDriverLibrary = "libcuda.so.1";

// Opens `library` and initialises the driver. False, with a sentence in `why_not`, where it cannot be opened, lacks a function, or finds no device. Never closed again: the driver
// has threads of its own.
bool open_driver(const char* library, Driver& driver, std::string& why_not);

// Makes the primary context of a device current in this thread for its lifetime; then what was current is so again. `error()` is empty where that worked.
class Current {
 public:
  Current(const Driver& driver, int ordinal);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  const std::string& error() const { return error_; }

 private:
  const Driver& driver_;
  cu::Device device_ = 0;
  cu::Context* before_ = nullptr;
  bool retained_ = false;
  std::string error_;
};

}  // namespace ringcomm::cuda
