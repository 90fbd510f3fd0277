// Lists of chunks for the kernels of `spin` mode, where a call's chunks are not one range. They lie in host memory that the device reads, each until the call that uses it is done; one that is in a captured
// graph stays for ever.
#pragma once

#include <memory>
#include <vector>

#include "cuda/device_runtime.h"
#include "cuda/kernel_call.h"

namespace ringcomm::cuda {

class SpinLists {
 public:
  explicit SpinLists(DeviceRuntime& runtime) : runtime_(runtime) {}

  struct List {
    DeviceChunk* host;
    const DeviceChunk* device;
    size_t capacity;   // chunks
    DeviceEvent done;  // recorded behind the call that used it last
    bool taken = false, kept = false;
  };
  // So many more, for so many chunks each. Allocates, which may wait for kernels and which a capture may not allow: some are made before the first call.
  bool add(size_t lists, size_t chunks, Error& error);
  // One that nobody uses, for so many chunks; null: `error`. Where none is free there will be one more.
  List* take(size_t chunks, Error& error);
  // The call is enqueued.
  bool used(List& list, StreamHandle stream, Error& error);
  size_t size() const { return lists_.size(); }

 private:
  DeviceRuntime& runtime_;
  std::vector<PinnedMemory> memory_;
  std::vector<std::unique_ptr<List>> lists_;
};

}  // namespace ringcomm::cuda
