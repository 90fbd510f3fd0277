// What the rest asks of a device: memory that processes share, streams, copies, flags and kernels. driver_runtime.h does it over the CUDA driver.
//
// Any thread may call anything but load_kernels; each call makes the device's context current for itself and puts back what the thread had, because that is also torch's
// "current device". Nothing here waits for a device without a deadline. Failures are an Error with the call's and the driver's own names and false; `out` is untouched then.
//
// Device memory is `char*` here and is only for the device: reading it on the host is a crash. Flags are aligned words of 32 bits.
//
// Before memory is given back, no stream may still wait for a flag: the driver's free may wait for all streams, for ever.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "cuda/driver_abi.h"

namespace ringcomm::cuda {

using StreamHandle =
    cu::Stream*;  // own ones, and what torch calls a stream's native handle; null is the default stream
using EventHandle = cu::Event*;

struct DeviceFacts {
  int ordinal = 0;  // in this process only
  std::string name;
  std::string uuid;     // "GPU-" and 32 hexadecimal digits in groups: the same in every process
  std::string pci;      // "0000:3b:00.0"
  std::string process;  // random digits, of this process
  int major = 0, minor = 0, multiprocessors = 0, copy_engines = 0;
  bool one_process = false;  // the device is in exclusive mode: a second process gets an error
  int driver_version = 0;    // as Driver::version
};

// Memory of the host that the device reads and writes too.
struct HostMemory {
  char* host = nullptr;
  char* device = nullptr;
  size_t bytes = 0;
};

// How another process finds a piece of device memory: plain data, for cards and handshakes.
struct SharedMemory {
  uint8_t process[16];  // random, of the process that owns it
  cu::Uuid device;
  cu::IpcMemHandle handle;       // of the whole allocation
  uint64_t base, offset, bytes;  // base: in its owner's addresses
};

struct ImportedMemory {
  char* data = nullptr;    // the piece
  char* opened = nullptr;  // the allocation, as opened here; null: it is of this process
};

// Fills in `error`; false.
inline bool refuse(Cause cause, const std::string& text, Error& error) {
  error = {};
  error.cause = cause;
  std::snprintf(error.text, sizeof error.text, "%s", text.c_str());
  return false;
}

class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual const DeviceFacts& facts() const = 0;

  // The devices, by UUID, that this process sees and whose memory this one cannot reach. Of those that it does not see nobody knows before `import`.
  virtual bool unreachable(std::vector<std::string>& out, Error& error) = 0;

  // Memory. `allocate` gives zeroes, at an address that is a multiple of 256.
  virtual bool allocate(size_t bytes, char*& out, Error& error) = 0;
  virtual void free(char* memory) = 0;
  // Any piece of one plain allocation, of anybody in this process. (Memory of torch's expandable segments cannot be exported: an error.)
  virtual bool share(const char* data, size_t bytes, SharedMemory& out, Error& error) = 0;
  // A piece of this process is only looked up, since no process may open its own handle. Of another process each import is closed once, before the owner frees.
  virtual bool import(const SharedMemory& from, ImportedMemory& out, Error& error) = 0;
  virtual void close(const ImportedMemory& memory) = 0;
  // Zeroes, of this process only; or what is there already, at whole pages, which processes may share.
  virtual bool allocate_host(size_t bytes, HostMemory& out, Error& error) = 0;
  virtual void free_host(const HostMemory& memory) = 0;
  virtual bool register_host(char* host, size_t bytes, HostMemory& out, Error& error) = 0;
  virtual void unregister_host(const HostMemory& memory) = 0;

  // Streams and events. Own streams are not ordered with the default stream; events take no time.
  virtual bool make_stream(StreamHandle& out, Error& error) = 0;
  virtual void destroy(StreamHandle stream) = 0;
  virtual bool make_event(EventHandle& out, Error& error) = 0;
  virtual void destroy(EventHandle event) = 0;
  virtual bool record(EventHandle event, StreamHandle stream, Error& error) = 0;
  // What is enqueued to the stream from here on comes after what the event stands for at this call.
  virtual bool wait_event(StreamHandle stream, EventHandle event, Error& error) = 0;
  // Whether all before it has been done. An error of the device that happened at any time may come out here.
  virtual bool done(EventHandle event, bool& out, Error& error) = 0;
  virtual bool done(StreamHandle stream, bool& out, Error& error) = 0;
  // Blocks until the stream has nothing to do; past the deadline an error with Cause::timeout. Sleeps between looks: for setting up and tearing down.
  virtual bool drain(StreamHandle stream, int64_t deadline_ns, Error& error) = 0;
  // Whether what is enqueued goes into a graph. A capture that failed already is an error.
  virtual bool capturing(StreamHandle stream, bool& out, Error& error) = 0;
  // The calling thread may from here on ask events and streams while any stream is captured, which otherwise ends that capture. For threads that never capture.
  virtual bool look_beside_captures(Error& error) = 0;
  // The calling thread's mode, exchanged: for one that may capture, around a question.
  virtual bool exchange_capture_mode(cu::CaptureMode& mode, Error& error) = 0;

  // Work, enqueued. Copies and zeroes are for memory that the device reaches.
  virtual bool copy(char* to, const char* from, size_t bytes, StreamHandle stream, Error& error) = 0;
  virtual bool zero(char* to, size_t bytes, StreamHandle stream, Error& error) = 0;
  // The flag gets the value after all that is before it in the stream is visible to whoever sees the value.
  virtual bool write_flag(uint32_t* flag, uint32_t value, StreamHandle stream, Error& error) = 0;
  // The stream goes on when the flag is at or past the value, by signed distance. Flags of other streams must be written by what was enqueued before, or by other
  // processes: two streams of one device that wait for each other in turn may be put behind each other.
  virtual bool wait_flag(const uint32_t* flag, uint32_t value, StreamHandle stream, Error& error) = 0;

  // The module with all kernels of these names, loaded now: a kernel loaded at its first launch may wait for running ones, which may wait for it. Once, before any launch.
  virtual bool load_kernels(const void* image, const std::vector<std::string>& names, Error& error) = 0;
  // `parameter` is read before this returns; its size is the kernel's.
  virtual bool launch(const std::string& kernel, unsigned blocks, unsigned threads, const void* parameter,
                      StreamHandle stream, Error& error) = 0;
};

// While it lives the calling thread may ask events and streams though some stream, its own too, is being captured. False: it may not, `error` says why.
class BesideCaptures {
 public:
  BesideCaptures(DeviceRuntime& runtime, Error& error)
      : runtime_(runtime), may_(runtime.exchange_capture_mode(mode_, error)) {}
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures() {
    Error error;
    if (may_) (void)runtime_.exchange_capture_mode(mode_, error);
  }
  explicit operator bool() const { return may_; }

 private:
  DeviceRuntime& runtime_;
  cu::CaptureMode mode_ = cu::kCaptureRelaxed;
  const bool may_;
};

// Owns one thing that a runtime made, and gives it back. The runtime must outlive it.
template <typename T, void (DeviceRuntime::*give_back)(T)>
class Owned {
 public:
  using Value = std::decay_t<T>;
  Owned() = default;
  Owned(DeviceRuntime& runtime, Value value) : runtime_(&runtime), value_(value) {}
  Owned(Owned&& other) noexcept : runtime_(std::exchange(other.runtime_, nullptr)), value_(other.value_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(runtime_, other.runtime_);
    std::swap(value_, other.value_);
    return *this;
  }
  ~Owned() { reset(); }
  void reset() {
    if (auto* const runtime = std::exchange(runtime_, nullptr)) (runtime->*give_back)(value_);
  }
  explicit operator bool() const { return runtime_ != nullptr; }
  const Value& operator*() const { return value_; }
  const Value* operator->() const { return &value_; }

 private:
  DeviceRuntime* runtime_ = nullptr;
  Value value_{};
};

using DeviceMemory = Owned<char*, &DeviceRuntime::free>;
using PeerMemory = Owned<const ImportedMemory&, &DeviceRuntime::close>;
using PinnedMemory = Owned<const HostMemory&, &DeviceRuntime::free_host>;
using RegisteredMemory = Owned<const HostMemory&, &DeviceRuntime::unregister_host>;
using DeviceStream = Owned<StreamHandle, &DeviceRuntime::destroy>;
using DeviceEvent = Owned<EventHandle, &DeviceRuntime::destroy>;

// Each is false (empty) where there is an error.
inline DeviceMemory device_memory(DeviceRuntime& runtime, size_t bytes, Error& error) {
  char* memory;
  return runtime.allocate(bytes, memory, error) ? DeviceMemory(runtime, memory) : DeviceMemory();
}
inline PeerMemory peer_memory(DeviceRuntime& runtime, const SharedMemory& from, Error& error) {
  ImportedMemory memory;
  return runtime.import(from, memory, error) ? PeerMemory(runtime, memory) : PeerMemory();
}
inline PinnedMemory pinned_memory(DeviceRuntime& runtime, size_t bytes, Error& error) {
  HostMemory memory;
  return runtime.allocate_host(bytes, memory, error) ? PinnedMemory(runtime, memory) : PinnedMemory();
}
inline RegisteredMemory registered_memory(DeviceRuntime& runtime, char* host, size_t bytes, Error& error) {
  HostMemory memory;
  return runtime.register_host(host, bytes, memory, error) ? RegisteredMemory(runtime, memory) : RegisteredMemory();
}
inline DeviceStream device_stream(DeviceRuntime& runtime, Error& error) {
  StreamHandle stream;
  return runtime.make_stream(stream, error) ? DeviceStream(runtime, stream) : DeviceStream();
}
inline DeviceEvent device_event(DeviceRuntime& runtime, Error& error) {
  EventHandle event;
  return runtime.make_event(event, error) ? DeviceEvent(runtime, event) : DeviceEvent();
}

}  // namespace ringcomm::cuda
