// What is used of the CUDA driver's binary interface, declared here so that no CUDA header is needed. tests/native/cuda_driver_test.cpp compares it with cuda.h where that is
// installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringcomm::cu {

using Result = int;  // CUresult
using Device = int;
using Pointer = unsigned long long;  // CUdeviceptr
struct Context;
struct Module;
struct Function;
struct Stream;
struct Event;
struct Uuid {
  char bytes[16];
};
struct IpcHandle {
  char reserved[64];
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kNotReady = 600;
inline constexpr Result kNoDevice = 100;

// CUdevice_attribute.
inline constexpr int kMultiprocessors = 16;
inline constexpr int kUnifiedAddressing = 41;
inline constexpr int kComputeMajor = 75, kComputeMinor = 76;
inline constexpr int kGpuDirectRdma = 116, kRdmaWritesOrdering = 118, kDmaBuf = 124;

inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr unsigned kHostPortable = 1, kHostMapped = 2;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kWaitGreaterOrEqual = 0;  // (int32)(*addr - value) >= 0
inline constexpr unsigned kWriteDefault = 0;
inline constexpr int kCaptureNone = 0;  // CUstreamCaptureStatus

}  // namespace ringcomm::cu
