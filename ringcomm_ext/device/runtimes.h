// The devices of this process: from which driver, with which kernels, one runtime each. Opened when a group first needs one, never closed: torch's own use of the device does not
// end before the process either.
#pragma once

#include <string>

#include "cuda/device_runtime.h"
#include "cuda/driver.h"

namespace ringcomm {

struct DeviceSource {
  std::string driver = cuda::kDriverLibrary;  // as dlopen takes it
  std::string kernels;                        // path of the fatbin; empty: there is none,
  std::string missing;                        // and this is why
  int blocks = 16;                            // of a kernel in spin mode; guessed
  unsigned threads = 512;                     // of a block; guessed
  std::string warning;                        // for the log, at each group's set-up; empty: none
};

// Before the first runtime is opened; later calls change nothing of what is open.
void set_device_source(const DeviceSource& source);
DeviceSource device_source();

// The runtime of a device by its number in this process, all kernels loaded. Null and `error`, a sentence that says what is missing, where it cannot be had. Any thread.
cuda::DeviceRuntime* device_runtime(int ordinal, Error& error);

// Whether the stream of that device is being captured into a graph, without a runtime being opened for it. True, and `out` false, where there is no driver.
bool stream_is_capturing(int ordinal, cuda::StreamHandle stream, bool& out, Error& error);

}  // namespace ringcomm
