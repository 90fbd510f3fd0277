// The inside of driver_runtime.h, for its two sources.
#pragma once

#include <array>
#include <string>

#include "cuda/driver_runtime.h"

namespace ringcomm::cuda {

inline cu::DevicePtr address(const void* p) { return reinterpret_cast<cu::DevicePtr>(p); }
inline char* pointer(cu::DevicePtr p) { return reinterpret_cast<char*>(p); }

// "GPU-" and the bytes as nvidia-smi groups them.
std::string text_of(const cu::Uuid& uuid);

// Random bytes of this process. A pid is not enough: two containers may both have a process 7.
const std::array<uint8_t, 16>& this_process();

// The context is this thread's while it lives. Getting it is a look at a thread's own variable; setting happens in threads that had another one.
class DriverRuntime::Current {
 public:
  Current(const DriverRuntime& runtime, Error& error) : runtime_(runtime) {
    good_ = runtime.good(runtime.t_.context_get_current(&before_), "cuCtxGetCurrent", error);
    if (!good_ || before_ == runtime.context_) return;
    good_ = changed_ = runtime.good(runtime.t_.context_set_current(runtime.context_), "cuCtxSetCurrent", error);
  }
  ~Current() {
    if (changed_) runtime_.released(runtime_.t_.context_set_current(before_), "cuCtxSetCurrent");
  }
  explicit operator bool() const { return good_; }

 private:
  const DriverRuntime& runtime_;
  cu::Context* before_ = nullptr;
  bool good_ = false, changed_ = false;
};

}  // namespace ringcomm::cuda
