// What DriverRuntime does about memory: the device's, the host's, and peers'.
#include <cstring>

#include "core/random_bytes.h"
#include "cuda/driver_inside.h"

namespace ringcomm::cuda {
namespace {

constexpr int64_t kSetUpNs = 30'000'000'000;  // guessed: zeroes behind whatever else keeps the device busy

bool same(const cu::Uuid& a, const cu::Uuid& b) { return std::memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0; }

std::string bytes_text(size_t bytes, const DeviceFacts& facts) {
  return std::to_string(bytes) + " bytes, device " + std::to_string(facts.ordinal) + " (" + facts.name + ")";
}

}  // namespace

const std::array<uint8_t, 16>& this_process() {
  static const auto bytes = random_bytes<16>();
  return bytes;
}

bool DriverRuntime::allocate(size_t bytes, char*& out, Error& error) {
  const Current current(*this, error);
  cu::DevicePtr memory;
  if (!current || !good(t_.mem_alloc(&memory, bytes), "cuMemAlloc", error, bytes_text(bytes, facts_))) return false;
  if (!zero(pointer(memory), bytes, service_, error) || !drain(service_, now_ns() + kSetUpNs, error)) {
    free(pointer(memory));
    return false;
  }
  out = pointer(memory);
  return true;
}

void DriverRuntime::free(char* memory) {
  Error error;
  if (const Current current{*this, error}) released(t_.mem_free(address(memory)), "cuMemFree");
}

bool DriverRuntime::share(const char* data, size_t bytes, SharedMemory& out, Error& error) {
  const Current current(*this, error);
  cu::DevicePtr base;
  size_t whole;
  if (!current || !good(t_.mem_range(&base, &whole, address(data)), "cuMemGetAddressRange", error)) return false;
  SharedMemory made{};
  made.base = base;
  made.offset = address(data) - base;
  made.bytes = bytes;
  if (made.offset + bytes > whole)
    return refuse(Cause::internal, std::to_string(bytes) + " bytes to share reach past their allocation", error);
  if (!good(t_.ipc_get(&made.handle, base), "cuIpcGetMemHandle", error, bytes_text(bytes, facts_))) return false;
  std::memcpy(made.process, this_process().data(), sizeof made.process);
  made.device = uuid_;
  out = made;
  return true;
}

bool DriverRuntime::look_up(int ordinal, cu::Device& device, cu::Uuid& uuid, Error& error) {
  return good(t_.device_get(&device, ordinal), "cuDeviceGet", error) &&
         good(t_.device_uuid(&uuid, device), "cuDeviceGetUuid", error);
}

bool DriverRuntime::can_access(cu::Device other, bool& out, Error& error) {
  int can = 0;
  if (!good(t_.can_access_peer(&can, device_, other), "cuDeviceCanAccessPeer", error)) return false;
  out = can != 0;
  return true;
}

// A peer's device that this process cannot see (CUDA_VISIBLE_DEVICES) cannot be asked about: opening its memory tells.
bool DriverRuntime::reaches(const cu::Uuid& device, Error& error) {
  for (int i = 0; i < driver_.devices && !same(device, uuid_); ++i) {
    cu::Device other;
    cu::Uuid uuid;
    bool can = false;
    if (!look_up(i, other, uuid, error)) return false;
    if (!same(uuid, device)) continue;
    if (!can_access(other, can, error)) return false;
    if (can) return true;
    return refuse(Cause::connection, facts_.uuid + " cannot reach the memory of " + text_of(device), error);
  }
  return true;
}

bool DriverRuntime::unreachable(std::vector<std::string>& out, Error& error) {
  std::vector<std::string> found;
  for (int i = 0; i < driver_.devices; ++i) {
    cu::Device other;
    cu::Uuid uuid;
    bool can = false;
    if (!look_up(i, other, uuid, error)) return false;
    if (same(uuid, uuid_)) continue;
    if (!can_access(other, can, error)) return false;
    if (!can) found.push_back(text_of(uuid));
  }
  out = std::move(found);
  return true;
}

bool DriverRuntime::import(const SharedMemory& from, ImportedMemory& out, Error& error) {
  if (std::memcmp(from.process, this_process().data(), sizeof from.process) == 0) {
    if (!same(from.device, uuid_))
      return refuse(Cause::connection,
                    "two devices of one process (" + facts_.uuid + ", " + text_of(from.device) +
                        ") are not connected: use one process for each",
                    error);
    out = {pointer(from.base + from.offset), nullptr};
    return true;
  }
  const Current current(*this, error);
  cu::DevicePtr opened;
  if (!current || !reaches(from.device, error) ||
      !good(t_.ipc_open(&opened, from.handle, cu::kIpcLazyPeerAccess), "cuIpcOpenMemHandle", error,
            bytes_text(from.bytes, facts_)))
    return false;
  out = {pointer(opened + from.offset), pointer(opened)};
  return true;
}

void DriverRuntime::close(const ImportedMemory& memory) {
  Error error;
  if (memory.opened == nullptr) return;
  if (const Current current{*this, error}) released(t_.ipc_close(address(memory.opened)), "cuIpcCloseMemHandle");
}

bool DriverRuntime::allocate_host(size_t bytes, HostMemory& out, Error& error) {
  const Current current(*this, error);
  void* host;
  cu::DevicePtr device;
  if (!current || !good(t_.host_alloc(&host, bytes, cu::kHostAllocPortable | cu::kHostAllocDeviceMap), "cuMemHostAlloc",
                        error, std::to_string(bytes) + " bytes"))
    return false;
  if (!good(t_.host_device_pointer(&device, host, 0), "cuMemHostGetDevicePointer", error)) {
    released(t_.host_free(host), "cuMemFreeHost");
    return false;
  }
  std::memset(host, 0, bytes);
  out = {static_cast<char*>(host), pointer(device), bytes};
  return true;
}

void DriverRuntime::free_host(const HostMemory& memory) {
  Error error;
  if (const Current current{*this, error}) released(t_.host_free(memory.host), "cuMemFreeHost");
}

bool DriverRuntime::register_host(char* host, size_t bytes, HostMemory& out, Error& error) {
  const Current current(*this, error);
  cu::DevicePtr device;
  if (!current || !good(t_.host_register(host, bytes, cu::kHostRegisterPortable | cu::kHostRegisterDeviceMap),
                        "cuMemHostRegister", error, std::to_string(bytes) + " bytes"))
    return false;
  if (!good(t_.host_device_pointer(&device, host, 0), "cuMemHostGetDevicePointer", error)) {
    released(t_.host_unregister(host), "cuMemHostUnregister");
    return false;
  }
  out = {host, pointer(device), bytes};
  return true;
}

void DriverRuntime::unregister_host(const HostMemory& memory) {
  Error error;
  if (const Current current{*this, error}) released(t_.host_unregister(memory.host), "cuMemHostUnregister");
}

}  // namespace ringcomm::cuda
