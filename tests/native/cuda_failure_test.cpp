// DriverRuntime over the fake driver: each call that fails, and callers that do wrong.
#include <map>
#include <set>

#include "check.h"
#include "cuda/driver_runtime.h"
#include "cuda_shared.h"
#include "fake_cuda.h"

using namespace ringcomm;
using namespace ringcomm::cuda;
using namespace ringcomm::test;

namespace {

using Runtime = std::unique_ptr<DriverRuntime>;

struct Add {
  uint32_t* to;
  uint32_t value;
};

// Something of everything that one process can do, to its first error.
bool everything(Error& error) {
  const SharedPages pages(4096);
  const Runtime runtime = DriverRuntime::open(fake_cuda(), 0, error);
  if (!runtime || !runtime->load_kernels(fake_cuda_image(), {"add"}, error)) return false;
  const DeviceMemory memory = device_memory(*runtime, 256, error);
  if (!memory) return false;
  SharedMemory shared;
  if (!runtime->share(*memory, 256, shared, error)) return false;
  const PinnedMemory pinned = pinned_memory(*runtime, 256, error);
  if (!pinned) return false;
  const RegisteredMemory flags = registered_memory(*runtime, pages.at, 4096, error);
  if (!flags) return false;
  const DeviceStream stream = device_stream(*runtime, error);
  if (!stream) return false;
  const DeviceEvent event = device_event(*runtime, error);
  if (!event) return false;
  const Add add{reinterpret_cast<uint32_t*>(*memory), 1};
  auto* const flag = reinterpret_cast<uint32_t*>(flags->device);
  bool is = false;
  // Enough that a stream is never left waiting by an error half way.
  const bool good = runtime->capturing(*stream, is, error) && runtime->write_flag(flag, 1, *stream, error) &&
                    runtime->wait_flag(flag, 1, *stream, error) &&
                    runtime->copy(*memory, pinned->device, 256, *stream, error) &&
                    runtime->launch("add", 1, 1, &add, *stream, error) && runtime->record(*event, *stream, error) &&
                    runtime->wait_event(*stream, *event, error) && runtime->done(*event, is, error) &&
                    runtime->drain(*stream, after_ms(30'000), error);
  Error also;
  return runtime->drain(*stream, after_ms(30'000), good ? error : also) && good;
}

// What gives something back has nobody to tell, and what is not given back is lost.
bool gives_back(const std::string& name) {
  return std::set<std::string>{
      "cuMemFree_v2",      "cuMemFreeHost",  "cuMemHostUnregister",         "cuStreamDestroy_v2",
      "cuEventDestroy_v2", "cuModuleUnload", "cuDevicePrimaryCtxRelease_v2"}
      .contains(name);
}

void every_failure() {
  section("each call that fails gives its error and leaves nothing behind");
  const auto prepare = [] {
    fake_cuda().table.context_set_current(nullptr);  // where setting it back was what failed
    fake_cuda_reset();
    fake_cuda_kernel("add", sizeof(Add), [](const FakeLaunch&) {});
  };
  prepare();
  Error error;
  if (!everything(error)) fail(__FILE__, __LINE__, error.text);
  CHECK(fake_cuda_live().none());
  std::map<std::string, int> calls;
#define CALLS(member, name, parameters) calls[#name] = fake_cuda_calls(#name);
  RINGCOMM_CUDA_FUNCTIONS(CALLS)
#undef CALLS
  int failed = 0;
  for (const auto& [name, count] : calls) {
    if (gives_back(name) || name == "cuInit" || name == "cuDriverGetVersion" || name == "cuDeviceGetCount") continue;
    // How often a stream is asked, and so the context, is a matter of time.
    const int most = name == "cuStreamQuery" ? 2 : std::min(count, 8);
    for (int nth = 1; nth <= most; ++nth) {
      prepare();
      fake_cuda_fail(name, nth, cu::kOutOfMemory);
      error = {};
      const bool good = everything(error);
      const std::string plain = name.substr(0, name.find("_v2"));
      // Setting back what a thread had is a giving back too.
      if (good && name == "cuCtxSetCurrent" && nth % 2 == 0) continue;
      if (good) fail(name.c_str(), nth, "did not fail");
      CHECK_CONTAINS(std::string(error.text), plain + " failed with CUDA_ERROR_OUT_OF_MEMORY (2)");
      if (!fake_cuda_live().none()) fail(name.c_str(), nth, "something was left");
      CHECK_EQ(fake_cuda_misuse(), std::string());
      ++failed;
    }
  }
  std::printf("    %d failures\n", failed);
  CHECK(failed >= 30);
}

void the_fake_is_strict() {
  section("the fake driver notes misuse (or the tests above could not fail)");
  fake_cuda_reset();
  const cu::Table& t = fake_cuda().table;
  const auto noted = [](const char* text) {
    CHECK_CONTAINS(fake_cuda_misuse(), text);
    fake_cuda_forget_misuse();
  };
  cu::DevicePtr memory;
  CHECK_EQ(t.mem_alloc(&memory, 64), cu::kInvalidContext);
  noted("cuMemAlloc_v2: without a context");
  {
    Error error;
    const Runtime runtime = DriverRuntime::open(fake_cuda(), 0, error);
    CHECK(runtime);
    cu::Context* context;
    CHECK_EQ(t.context_retain(&context, 0), cu::kSuccess);
    CHECK_EQ(t.context_set_current(context), cu::kSuccess);
    CHECK_EQ(t.mem_alloc(&memory, 64), cu::kSuccess);
    cu::IpcMemHandle handle;
    CHECK_EQ(t.ipc_get(&handle, memory + 4), cu::kInvalidValue);
    noted("not the base");
    CHECK_EQ(t.ipc_get(&handle, memory), cu::kSuccess);
    cu::DevicePtr opened_here;
    CHECK_EQ(t.ipc_open(&opened_here, handle, cu::kIpcLazyPeerAccess), cu::kInvalidContext);
    noted("an own handle");
    DeviceStream stream = device_stream(*runtime, error);
    CHECK_EQ(t.mem_free(memory), cu::kSuccess);
    CHECK_EQ(t.mem_free(memory), cu::kInvalidValue);
    noted("freed before");
    CHECK_EQ(t.wait_value(*stream, memory, 1, cu::kWaitGreaterEqual), cu::kInvalidValue);
    noted("the flag: 4 bytes that are in no memory");
    const PinnedMemory pinned = pinned_memory(*runtime, 64, error);
    CHECK(!runtime->copy(pinned->host, pinned->device, 64, *stream, error));  // the host's address
    noted("to: 64 bytes that are in no memory");
    CHECK(runtime->wait_flag(reinterpret_cast<uint32_t*>(pinned->device), 1, *stream, error));
    stream.reset();
    noted("cuStreamDestroy_v2: a stream with work to do");
    CHECK_EQ(t.context_set_current(nullptr), cu::kSuccess);
    CHECK_EQ(t.context_release(0), cu::kSuccess);
  }
}

}  // namespace

int main() {
  start("cuda_failure_test", 240);
  for (void (*const test)() : {every_failure, the_fake_is_strict}) {
    test();
    CHECK_EQ(fake_cuda_misuse(), std::string());
    CHECK(fake_cuda_live().none());
  }
  return 0;
}
