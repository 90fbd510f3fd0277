// Programs in the device's memory, each uploaded once: the packed table as it is, and behind it the ends of its connections, plain and low latency.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/program.h"
#include "cuda/device_runtime.h"
#include "cuda/layout.h"

namespace ringcomm::cuda {

struct SpinProgram {
  Program program;
  DeviceMemory memory;
  std::string refusal[2];  // plain, low latency; "": it runs
  KernelCall call[2];      // with the addresses of the tables and the FIFOs' numbers
};

class SpinPrograms {
 public:
  SpinPrograms(DeviceRuntime& runtime, const DeviceLayout& layout) : runtime_(runtime), layout_(layout) {}

  // Once, before anything else: memory and a stream to upload by. They are kept, because giving back memory may wait for all kernels of the process, among them some that wait for what comes after the
  // upload.
  bool reserve(Error& error) { return room_for(kUsual, error) && (stream_ = device_stream(runtime_, error)); }
  // Its number. -1 and `error`: no program, or one that cannot run over these FIFOs, or no memory. `segments`: by rank. Blocks until a new one is uploaded.
  int load(const std::vector<int32_t>& table, const std::vector<char*>& segments, Error& error);
  const SpinProgram& operator[](int k) const { return all_[static_cast<size_t>(k)]; }
  int size() const { return static_cast<int>(all_.size()); }

 private:
  static constexpr size_t kUsual = 64 << 10;  // bytes; holds most programs
  bool room_for(size_t bytes, Error& error);
  bool upload(const std::vector<int32_t>& table, const std::vector<char*>& segments, SpinProgram& to, Error& error);

  DeviceRuntime& runtime_;
  const DeviceLayout& layout_;
  std::vector<PinnedMemory> staging_;  // the last one is used
  DeviceStream stream_;
  std::map<std::vector<int32_t>, int> numbers_;
  std::vector<SpinProgram> all_;
};

}  // namespace ringcomm::cuda
