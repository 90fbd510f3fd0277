// Memory of the device and of the host, and IPC.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "check.h"
#include "fake_gpu.h"

namespace ringcomm::test {
namespace gpu {
namespace {

// What a handle of the fake driver holds.
struct Handle {
  char magic[8];
  uint64_t serial, bytes;
  int32_t pid, fd;
};
constexpr char kMagic[8] = "fakeipc";
constexpr size_t kPage = 4096;
constexpr int64_t kPatienceNs = 5'000'000'000;  // with streams that must drain

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

char* map(int fd, size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(at != MAP_FAILED);
  return static_cast<char*>(at);
}

// The addresses stay taken: whoever uses them again crashes instead of finding something else.
void unmap(char* at, size_t bytes) {
  CHECK(mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == at);
}

uint64_t new_serial() {
  static std::atomic<uint64_t> next{1};
  return next++ << 32 | static_cast<uint32_t>(getpid());
}

// As the driver's free, which may wait for all that was enqueued.
cu::Result wait_for_streams(cu::Context* context) {
  std::vector<std::pair<cu::Stream*, uint64_t>> todo;
  {
    const std::lock_guard lock(state().mutex);
    for (cu::Stream* stream : state().streams)
      if (stream->context == context) todo.emplace_back(stream, stream->enqueued());
  }
  const int64_t until = now_ns() + kPatienceNs;
  for (const auto& [stream, count] : todo) {
    while (true) {
      {
        const std::lock_guard lock(state().mutex);
        if (!state().streams.contains(stream) || stream->has_done(count)) break;
      }
      if (now_ns() > until) return misused("would wait for ever for a stream", cu::kIllegalState);
      usleep(100);
    }
  }
  return cu::kSuccess;
}

cu::Result taken_out(cu::DevicePtr address, Kind kind, Memory& out) {
  {
    const std::lock_guard lock(state().mutex);
    const auto found = state().memory.find(address);
    if (found != state().memory.end() && found->second.kind == kind) {
      out = found->second;
      state().memory.erase(found);
      return cu::kSuccess;
    }
  }
  return misused("not the beginning of any such memory, or freed before");
}

uintptr_t device_address_of(void* host) {
  for (const auto& [address, memory] : state().memory)
    if (memory.host == host && host != nullptr) return address;
  return 0;
}

}  // namespace

const Memory* holding(uintptr_t address, size_t bytes, uintptr_t* base) {
  auto next = state().memory.upper_bound(address);
  if (next == state().memory.begin()) return nullptr;
  --next;
  if (address + bytes > next->first + next->second.bytes) return nullptr;
  if (base != nullptr) *base = next->first;
  return &next->second;
}

bool reachable(cu::DevicePtr address, size_t bytes, const char* what) {
  {
    const std::lock_guard lock(state().mutex);
    if (holding(address, bytes) != nullptr) return true;
  }
  misused(std::string(what) + ": " + std::to_string(bytes) + " bytes that are in no memory of the device's");
  return false;
}

}  // namespace gpu

bool fake_cuda_is_dead(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const size_t end = text.rfind(')');
  return end == std::string::npos || text.find(" Z", end) != std::string::npos;
}

using gpu::Kind;
using gpu::Memory;
using gpu::state;

FAKE_CUDA(cuMemAlloc_v2, (cu::DevicePtr * pointer, size_t bytes)) {
  ENTER("cuMemAlloc_v2", context);
  if (bytes == 0) return cu::kInvalidValue;
  const size_t room = gpu::Header::kBytes + gpu::whole_pages(bytes);
  const int fd = memfd_create("fake device memory", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(room)) == 0);
  char* const at = gpu::map(fd, room);
  auto* const header = new (at) gpu::Header{};
  header->serial = gpu::new_serial();
  std::memset(at + gpu::Header::kBytes, 0xcd, bytes);  // what the last owner left
  *pointer = reinterpret_cast<cu::DevicePtr>(at) + gpu::Header::kBytes;
  const std::lock_guard lock(state().mutex);
  state().memory[*pointer] = {Kind::device, bytes, fd, header, nullptr, header->serial, 0, gpu::current()};
  return cu::kSuccess;
}

FAKE_CUDA(cuMemFree_v2, (cu::DevicePtr pointer)) {
  ENTER("cuMemFree_v2", context);
  if (const cu::Result waited = gpu::wait_for_streams(gpu::current()); waited != cu::kSuccess) return waited;
  {
    const std::lock_guard lock(state().mutex);
    const auto found = state().memory.find(pointer);
    if (found != state().memory.end() && found->second.kind == Kind::device)
      for (const auto& pid : found->second.header->pids)
        if (pid != 0 && !fake_cuda_is_dead(pid)) {
          gpu::note("cuMemFree_v2: process " + std::to_string(pid) + " still has it open");
          return cu::kIllegalState;
        }
  }
  Memory memory;
  if (const cu::Result taken = gpu::taken_out(pointer, Kind::device, memory); taken != cu::kSuccess) return taken;
  close(memory.fd);
  gpu::unmap(reinterpret_cast<char*>(pointer) - gpu::Header::kBytes,
             gpu::Header::kBytes + gpu::whole_pages(memory.bytes));
  return cu::kSuccess;
}

FAKE_CUDA(cuMemGetAddressRange_v2, (cu::DevicePtr * base, size_t* bytes, cu::DevicePtr pointer)) {
  ENTER("cuMemGetAddressRange_v2", context);
  const std::lock_guard lock(state().mutex);
  uintptr_t begin;
  const Memory* const memory = gpu::holding(pointer, 1, &begin);
  if (memory == nullptr) return cu::kNotFound;
  *base = begin;
  *bytes = memory->bytes;
  return cu::kSuccess;
}

FAKE_CUDA(cuMemHostAlloc, (void** pointer, size_t bytes, unsigned flags)) {
  ENTER("cuMemHostAlloc", context);
  if (bytes == 0 || !(flags & cu::kHostAllocDeviceMap)) return gpu::misused("not mapped, or of no bytes");
  const int fd = memfd_create("fake host memory", MFD_CLOEXEC);
  CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(gpu::whole_pages(bytes))) == 0);
  char* const host = gpu::map(fd, gpu::whole_pages(bytes));
  char* const device = gpu::map(fd, gpu::whole_pages(bytes));
  std::memset(host, 0xcd, bytes);
  close(fd);
  *pointer = host;
  const std::lock_guard lock(state().mutex);
  state().memory[reinterpret_cast<uintptr_t>(device)] = {Kind::host, bytes, -1, nullptr, host, 0, 0, gpu::current()};
  return cu::kSuccess;
}

FAKE_CUDA(cuMemHostRegister_v2, (void* pointer, size_t bytes, unsigned flags)) {
  ENTER("cuMemHostRegister_v2", context);
  if (!(flags & cu::kHostRegisterDeviceMap) || reinterpret_cast<uintptr_t>(pointer) % gpu::kPage != 0)
    return gpu::misused("not mapped, or not at the beginning of a page");
  {
    const std::lock_guard lock(state().mutex);
    if (gpu::device_address_of(pointer) != 0) return cu::kHostMemoryAlreadyRegistered;
  }
  // The same pages once more, which works for shared ones only.
  void* const device = mremap(pointer, 0, gpu::whole_pages(bytes), MREMAP_MAYMOVE);
  if (device == MAP_FAILED) return gpu::misused("not a shared mapping: beyond this fake", cu::kNotSupported);
  const std::lock_guard lock(state().mutex);
  state().memory[reinterpret_cast<uintptr_t>(device)] = {
      Kind::registered, bytes, -1, nullptr, static_cast<char*>(pointer), 0, 0, gpu::current()};
  return cu::kSuccess;
}

FAKE_CUDA(cuMemHostGetDevicePointer_v2, (cu::DevicePtr * pointer, void* host, unsigned)) {
  ENTER("cuMemHostGetDevicePointer_v2", context);
  {
    const std::lock_guard lock(state().mutex);
    *pointer = gpu::device_address_of(host);
  }
  return *pointer != 0 ? cu::kSuccess : gpu::misused("not the beginning of mapped memory");
}

namespace {

cu::Result free_mapped(void* host, Kind kind) {
  if (const cu::Result waited = gpu::wait_for_streams(gpu::current()); waited != cu::kSuccess) return waited;
  uintptr_t device;
  {
    const std::lock_guard lock(state().mutex);
    device = gpu::device_address_of(host);
  }
  Memory memory;
  if (const cu::Result taken = gpu::taken_out(device, kind, memory); taken != cu::kSuccess) return taken;
  gpu::unmap(reinterpret_cast<char*>(device), gpu::whole_pages(memory.bytes));
  if (kind == Kind::host) gpu::unmap(memory.host, gpu::whole_pages(memory.bytes));
  return cu::kSuccess;
}

}  // namespace

FAKE_CUDA(cuMemFreeHost, (void* pointer)) {
  ENTER("cuMemFreeHost", context);
  return free_mapped(pointer, Kind::host);
}

FAKE_CUDA(cuMemHostUnregister, (void* pointer)) {
  ENTER("cuMemHostUnregister", context);
  return free_mapped(pointer, Kind::registered);
}

FAKE_CUDA(cuIpcGetMemHandle, (cu::IpcMemHandle * handle, cu::DevicePtr base)) {
  ENTER("cuIpcGetMemHandle", context);
  gpu::Handle made{};
  {
    const std::lock_guard lock(state().mutex);
    const auto found = state().memory.find(base);
    if (found != state().memory.end() && found->second.kind == Kind::device) {
      std::memcpy(made.magic, gpu::kMagic, sizeof made.magic);
      made.serial = found->second.serial;
      made.bytes = found->second.bytes;
      made.pid = getpid();
      made.fd = found->second.fd;
    }
  }
  if (made.pid == 0) return gpu::misused("not the base of own device memory");
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &made, sizeof made);
  return cu::kSuccess;
}

FAKE_CUDA(cuIpcOpenMemHandle_v2, (cu::DevicePtr * pointer, cu::IpcMemHandle handle, unsigned flags)) {
  ENTER("cuIpcOpenMemHandle_v2", context);
  gpu::Handle from;
  std::memcpy(&from, &handle, sizeof from);
  if (flags != cu::kIpcLazyPeerAccess || std::memcmp(from.magic, gpu::kMagic, sizeof from.magic) != 0)
    return gpu::misused("not a handle");
  if (from.pid == getpid()) return gpu::misused("an own handle", cu::kInvalidContext);
  const std::lock_guard lock(state().mutex);
  for (auto& [base, memory] : state().memory)
    if (memory.kind == Kind::imported && memory.serial == from.serial) {
      ++memory.opens;
      *pointer = base;
      return cu::kSuccess;
    }
  const std::string path = "/proc/" + std::to_string(from.pid) + "/fd/" + std::to_string(from.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return cu::kInvalidHandle;
  const size_t room = gpu::Header::kBytes + gpu::whole_pages(from.bytes);
  // Of another descriptor under the same number there may be less; reading past its end would be a signal.
  if (lseek(fd, 0, SEEK_END) != static_cast<off_t>(room)) return close(fd), cu::kInvalidHandle;
  char* const at = gpu::map(fd, room);
  close(fd);
  auto* const header = reinterpret_cast<gpu::Header*>(at);
  int place = 0;
  for (int none = 0; place < gpu::Header::kMost; ++place, none = 0)
    if (header->pids[place].compare_exchange_strong(none, getpid())) break;
  if (header->serial != from.serial || place == gpu::Header::kMost) return gpu::unmap(at, room), cu::kInvalidHandle;
  *pointer = reinterpret_cast<cu::DevicePtr>(at) + gpu::Header::kBytes;
  state().memory[*pointer] = {Kind::imported, from.bytes, -1, header, nullptr, from.serial, 1, gpu::current()};
  return cu::kSuccess;
}

FAKE_CUDA(cuIpcCloseMemHandle, (cu::DevicePtr pointer)) {
  ENTER("cuIpcCloseMemHandle", context);
  {
    const std::lock_guard lock(state().mutex);
    const auto found = state().memory.find(pointer);
    if (found != state().memory.end() && found->second.kind == Kind::imported && found->second.opens > 1) {
      --found->second.opens;
      return cu::kSuccess;
    }
  }
  if (const cu::Result waited = gpu::wait_for_streams(gpu::current()); waited != cu::kSuccess) return waited;
  Memory memory;
  if (const cu::Result taken = gpu::taken_out(pointer, Kind::imported, memory); taken != cu::kSuccess) return taken;
  for (auto& pid : memory.header->pids)
    if (int own = getpid(); pid.compare_exchange_strong(own, 0)) break;
  gpu::unmap(reinterpret_cast<char*>(memory.header), gpu::Header::kBytes + gpu::whole_pages(memory.bytes));
  return cu::kSuccess;
}

}  // namespace ringcomm::test
