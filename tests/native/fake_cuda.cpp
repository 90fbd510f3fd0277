#include "fake_cuda.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ringcomm {

// The driver's opaque types.
struct cu::Stream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> todo;
  uint64_t given = 0, done = 0;
  bool ends = false;
  std::thread thread{[this] { run(); }};

  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    changed.notify_all();
    thread.join();
  }
  uint64_t give(std::function<void()> work) {
    const std::lock_guard lock(mutex);
    todo.push_back(std::move(work));
    changed.notify_all();
    return ++given;
  }
  bool reached(uint64_t ticket) {
    const std::lock_guard lock(mutex);
    return done >= ticket;
  }
  void wait(uint64_t ticket) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done >= ticket; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ends || !todo.empty(); });
      if (todo.empty()) return;
      const std::function<void()> work = std::move(todo.front());
      todo.pop_front();
      lock.unlock();
      work();
      lock.lock();
      ++done;
      changed.notify_all();
    }
  }
};

struct cu::Event {
  Stream* stream = nullptr;  // of the last record
  uint64_t ticket = 0;
};
struct cu::Function {
  size_t bytes;
  test::FakeKernel kernel;
};
struct cu::Context {};
struct cu::Module {};

namespace test {
namespace {

using cu::Result;
constexpr Result kInvalidValue = 1, kOutOfMemory = 2, kInvalidImage = 200, kInvalidContext = 201, kNotFound = 500;

struct Memory {
  size_t bytes;
  int fd;  // -1: opened, not owned
};
// What a handle holds in its 64 bytes.
struct Exported {
  pid_t pid;
  int fd;
  size_t bytes;
};
static_assert(sizeof(Exported) <= sizeof(cu::IpcHandle));

std::mutex mutex;  // of all below
std::map<cu::Pointer, Memory> memory;
std::map<std::string, cu::Function> kernels;
int others = 0;  // streams and events
int retained = 0;
cu::Context context;
cu::Module loaded;
thread_local cu::Context* current = nullptr;

char* at(cu::Pointer p) { return reinterpret_cast<char*>(p); }

Result map_memory(int fd, size_t bytes, bool owned, cu::Pointer* out) {
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return kOutOfMemory;
  const std::lock_guard lock(mutex);
  *out = reinterpret_cast<cu::Pointer>(mapped);
  memory[*out] = {bytes, owned ? fd : -1};
  return cu::kSuccess;
}

Result unmap(cu::Pointer p, bool owned) {
  const std::lock_guard lock(mutex);
  const auto found = memory.find(p);
  if (found == memory.end() || (found->second.fd >= 0) != owned) return kInvalidValue;
  munmap(at(p), found->second.bytes);
  if (owned) close(found->second.fd);
  memory.erase(found);
  return cu::kSuccess;
}

// The allocation that holds p.
bool range_of(cu::Pointer p, cu::Pointer& base, Memory& all) {
  const std::lock_guard lock(mutex);
  auto found = memory.upper_bound(p);
  if (found == memory.begin()) return false;
  --found;
  if (p >= found->first + found->second.bytes) return false;
  base = found->first, all = found->second;
  return true;
}

Result alloc(cu::Pointer* out, size_t bytes) {
  if (current == nullptr) return kInvalidContext;
  const size_t whole = (bytes + 4095) / 4096 * 4096;
  const int fd = memfd_create("fake device memory", 0);
  if (bytes == 0 || fd < 0 || ftruncate(fd, static_cast<off_t>(whole)) != 0) return kInvalidValue;
  const Result result = map_memory(fd, whole, true, out);
  if (result == cu::kSuccess) std::memset(at(*out), 0xa5, whole);  // nobody promised zeros
  return result;
}

Result ipc_export(cu::IpcHandle* handle, cu::Pointer p) {
  cu::Pointer base;
  Memory all;
  if (current == nullptr) return kInvalidContext;
  if (!range_of(p, base, all) || all.fd < 0) return kInvalidValue;
  const Exported what{getpid(), all.fd, all.bytes};
  std::memcpy(handle->reserved, &what, sizeof what);
  return cu::kSuccess;
}

Result ipc_open(cu::Pointer* out, cu::IpcHandle handle, unsigned) {
  Exported what;
  std::memcpy(&what, handle.reserved, sizeof what);
  if (current == nullptr || what.pid == getpid()) return kInvalidContext;
  const std::string path = "/proc/" + std::to_string(what.pid) + "/fd/" + std::to_string(what.fd);
  const int fd = open(path.c_str(), O_RDWR);
  if (fd < 0) return kInvalidValue;
  const Result result = map_memory(fd, what.bytes, false, out);
  close(fd);
  return result;
}

Result launch(cu::Function* f, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned, unsigned,
              cu::Stream* stream, void** parameters, void**) {
  if (current == nullptr) return kInvalidContext;
  if (f == nullptr || grid == 0 || block == 0 || block > 1024) return kInvalidValue;
  const char* const given = static_cast<const char*>(parameters[0]);
  std::vector<char> argument(given, given + f->bytes);
  stream->give([f, grid, block, argument] { f->kernel(argument.data(), grid, block); });
  return cu::kSuccess;
}

template <class Made>
Result make(Made** out, unsigned) {
  if (current == nullptr) return kInvalidContext;
  *out = new Made;
  const std::lock_guard lock(mutex);
  ++others;
  return cu::kSuccess;
}
template <class Made>
Result destroy(Made* made) {
  delete made;
  const std::lock_guard lock(mutex);
  --others;
  return cu::kSuccess;
}

Result record(cu::Event* event, cu::Stream* stream) {
  event->stream = stream, event->ticket = stream->give([] {});
  return cu::kSuccess;
}

// Binds to the latest record, as it is now.
Result wait_event(cu::Stream* stream, cu::Event* event, unsigned) {
  if (event->stream != nullptr) stream->give([from = event->stream, ticket = event->ticket] { from->wait(ticket); });
  return cu::kSuccess;
}

Result write_value(cu::Stream* stream, cu::Pointer p, uint32_t value, unsigned) {
  stream->give([=] { __atomic_store_n(reinterpret_cast<uint32_t*>(p), value, __ATOMIC_RELEASE); });
  return cu::kSuccess;
}

Result wait_value(cu::Stream* stream, cu::Pointer p, uint32_t value, unsigned flags) {
  if (flags != cu::kWaitGreaterOrEqual) return kInvalidValue;
  stream->give([=] {
    while (static_cast<int32_t>(__atomic_load_n(reinterpret_cast<uint32_t*>(p), __ATOMIC_ACQUIRE) - value) < 0)
      sched_yield();
  });
  return cu::kSuccess;
}

}  // namespace

void fake_cuda_kernel(const char* name, size_t bytes, FakeKernel kernel) {
  const std::lock_guard lock(mutex);
  kernels[name] = {bytes, kernel};
}

int fake_cuda_left() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(memory.size()) + others + retained;
}

cuda::Driver fake_cuda() {
  cuda::Driver d;
  d.init = [](unsigned) { return cu::kSuccess; };
  d.driver_version = [](int* version) { return *version = 13000, cu::kSuccess; };
  d.error_name = [](Result, const char** text) { return *text = "FAKE_ERROR", cu::kSuccess; };
  d.error_string = [](Result, const char** text) { return *text = "of the fake driver", cu::kSuccess; };
  d.device_count = [](int* count) { return *count = 1, cu::kSuccess; };
  d.device_get = [](cu::Device* device, int ordinal) {
    return *device = ordinal, ordinal == 0 ? cu::kSuccess : kInvalidValue;
  };
  d.device_attribute = [](int* value, int, cu::Device) { return *value = 0, cu::kSuccess; };
  d.device_uuid = [](cu::Uuid* uuid, cu::Device) { return std::memset(uuid, 7, sizeof *uuid), cu::kSuccess; };
  d.can_access_peer = [](int* can, cu::Device, cu::Device) { return *can = 0, cu::kSuccess; };
  d.primary_retain = [](cu::Context** out, cu::Device) {
    const std::lock_guard lock(mutex);
    return ++retained, *out = &context, cu::kSuccess;
  };
  d.primary_release = [](cu::Device) {
    const std::lock_guard lock(mutex);
    return retained-- > 0 ? cu::kSuccess : kInvalidContext;
  };
  d.set_current = [](cu::Context* c) { return current = c, cu::kSuccess; };
  d.get_current = [](cu::Context** c) { return *c = current, cu::kSuccess; };
  d.enable_peer = [](cu::Context*, unsigned) { return kInvalidValue; };
  d.alloc = alloc;
  d.free = [](cu::Pointer p) { return unmap(p, true); };
  d.address_range = [](cu::Pointer* base, size_t* bytes, cu::Pointer p) {
    Memory all;
    if (!range_of(p, *base, all)) return kInvalidValue;
    return *bytes = all.bytes, cu::kSuccess;
  };
  d.host_alloc = [](void** out, size_t bytes, unsigned) {
    cu::Pointer p = 0;
    const Result result = alloc(&p, bytes);
    return *out = at(p), result;
  };
  d.host_free = [](void* p) { return unmap(reinterpret_cast<cu::Pointer>(p), true); };
  d.host_pointer = [](cu::Pointer* out, void* p, unsigned) {
    return *out = reinterpret_cast<cu::Pointer>(p), cu::kSuccess;
  };
  d.fill = [](cu::Pointer p, unsigned char value, size_t bytes, cu::Stream* s) {
    return s->give([=] { std::memset(at(p), value, bytes); }), cu::kSuccess;
  };
  d.copy = [](cu::Pointer to, cu::Pointer from, size_t bytes, cu::Stream* s) {
    return s->give([=] { std::memcpy(at(to), at(from), bytes); }), cu::kSuccess;
  };
  d.ipc_export = ipc_export;
  d.ipc_open = ipc_open;
  d.ipc_close = [](cu::Pointer p) { return unmap(p, false); };
  d.module_load = [](cu::Module** out, const void* image) {
    *out = &loaded;
    return std::strcmp(static_cast<const char*>(image), kFakeImage) == 0 ? cu::kSuccess : kInvalidImage;
  };
  d.module_unload = [](cu::Module*) { return cu::kSuccess; };
  d.module_function = [](cu::Function** out, cu::Module*, const char* name) {
    const std::lock_guard lock(mutex);
    const auto found = kernels.find(name);
    if (found == kernels.end()) return kNotFound;
    return *out = &found->second, cu::kSuccess;
  };
  d.launch = launch;
  d.stream_create = make<cu::Stream>;
  d.stream_destroy = destroy<cu::Stream>;
  d.stream_query = [](cu::Stream* s) { return s->reached(s->given) ? cu::kSuccess : cu::kNotReady; };
  d.stream_wait = [](cu::Stream* s) { return s->wait(s->give([] {})), cu::kSuccess; };
  d.stream_capturing = [](cu::Stream*, int* status) { return *status = cu::kCaptureNone, cu::kSuccess; };
  d.stream_wait_event = wait_event;
  d.stream_write = write_value;
  d.stream_wait_value = wait_value;
  d.event_create = make<cu::Event>;
  d.event_record = record;
  d.event_query = [](cu::Event* e) {
    return e->stream == nullptr || e->stream->reached(e->ticket) ? cu::kSuccess : cu::kNotReady;
  };
  d.event_destroy = destroy<cu::Event>;
  return d;
}

}  // namespace test
}  // namespace ringcomm
