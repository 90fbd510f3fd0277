// A device of torch's (PrivateUse1) whose memory, streams and events are the fake CUDA driver's: what ringcomm is given instead of a GPU in tests. Never shipped.
//
//   test_device_guard.cpp    current device and stream, streams, events
//   test_device_memory.cpp   allocator, storage
//   test_device_ops.cpp      the few operations that are the device's own; all others run on the CPU and are copied back
//   test_device_module.cpp   the Python module
//
// The host waits for a device's stream only where it reads or writes that device's memory, and then for the current stream alone: whoever forgets to order streams gets
// wrong numbers, as on a GPU. Memory that is freed is used again at once, and written over in the stream that it was allocated in.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "fake_cuda.h"

namespace test_device {

namespace cu = ringcomm::cu;

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline const cu::Table& driver() { return ringcomm::test::fake_cuda().table; }

// Throws where a call of the driver has failed.
void check(cu::Result result, const char* call);

// The device's context is current while it lives.
class InContext {
 public:
  explicit InContext(c10::DeviceIndex device);
  ~InContext();

 private:
  cu::Context* before_ = nullptr;
};

c10::DeviceIndex current_device();
c10::Stream current_stream(c10::DeviceIndex device);
cu::Stream* handle(const c10::Stream& stream);
// Blocks until all that is enqueued there has been done.
void synchronize(const c10::Stream& stream);

c10::Allocator& allocator();

}  // namespace test_device
