// Bookkeeping, devices and contexts.
#include "fake_cuda.h"

#include <unistd.h>

#include <cstring>

#include "check.h"
#include "fake_gpu.h"

namespace ringcomm::cu {
#define DECLARED(member, name, parameters) extern "C" Result name parameters;
RINGCOMM_CUDA_FUNCTIONS(DECLARED)
#undef DECLARED
}  // namespace ringcomm::cu

namespace ringcomm::test {
namespace gpu {
namespace {

thread_local cu::Context* current_context = nullptr;
thread_local const char* current_call = "";

constexpr uint32_t kImage = 0xba55ed50;  // what a fatbin begins with

}  // namespace

State& state() {
  static State& all = *new State;  // leaked: streams may still run at the end
  return all;
}

cu::Context* current() { return current_context; }

cu::Result misused(const std::string& text, cu::Result result) {
  const std::lock_guard lock(state().mutex);
  note(std::string(current_call) + ": " + text);
  return result;
}

void note(const std::string& text) {
  state().misuse += text + "\n";
  if (std::getenv("FAKE_CUDA_ABORT") != nullptr) fail("fake CUDA driver", 0, text);
}

cu::Result enter(const char* name, Needs needs) {
  current_call = name;
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    ++s.calls[name];
    if (!std::strstr(name, "Query") && !std::strstr(name, "CtxGetCurrent")) s.log.push_back(name);
    if (const auto failing = s.failing.find(name); failing != s.failing.end() && --failing->second.left == 0) {
      const cu::Result result = failing->second.result;
      s.failing.erase(failing);
      return result;
    }
  }
  if (needs == Needs::nothing) return cu::kSuccess;
  if (s.pid == 0) return misused("before cuInit", cu::kNotInitialized);
  if (s.pid != getpid()) return misused("in a forked child", cu::kNotInitialized);
  if (needs == Needs::context && current_context == nullptr) return misused("without a context", cu::kInvalidContext);
  if (needs == Needs::context && current_context->retained == 0)
    return misused("in a context that was released", cu::kInvalidContext);
  return cu::kSuccess;
}

}  // namespace gpu

using gpu::state;

void fake_cuda_reset(const FakeMachine& machine) {
  const FakeLive live = fake_cuda_live();
  if (!live.none() && live.contexts > 0) fail(__FILE__, __LINE__, "reset while something is live");
  gpu::State& s = state();
  const std::lock_guard lock(s.mutex);
  s.machine = machine;
  s.kernels.clear();
  s.failing.clear();
  s.calls.clear();
  s.log.clear();
  s.misuse.clear();
  ++s.resets;
}

const cuda::Driver& fake_cuda() {
  static cuda::Driver& driver = *new cuda::Driver;
  static std::mutex& one_at_a_time = *new std::mutex;
  static int resets = -1;
  const std::lock_guard lock(one_at_a_time);
  if (resets == state().resets) return driver;  // others may be reading it
#define TAKE(member, name, parameters) driver.table.member = cu::name;
  RINGCOMM_CUDA_FUNCTIONS(TAKE)
#undef TAKE
  std::string why_not;
  if (!cuda::start_driver(driver, why_not)) fail(__FILE__, __LINE__, why_not);
  resets = state().resets;
  return driver;
}

void fake_cuda_kernel(const std::string& name, size_t bytes, std::function<void(const FakeLaunch&)> function) {
  const std::lock_guard lock(state().mutex);
  state().kernels[name] = {name, bytes, std::move(function)};
}

const void* fake_cuda_image() { return &gpu::kImage; }

void fake_cuda_fail(const std::string& name, int nth, cu::Result result) {
  const std::lock_guard lock(state().mutex);
  state().failing[name] = {nth, result};
}

int fake_cuda_calls(const std::string& name) {
  const std::lock_guard lock(state().mutex);
  return state().calls[name];
}

std::vector<std::string> fake_cuda_log() {
  const std::lock_guard lock(state().mutex);
  return state().log;
}

std::string fake_cuda_misuse() {
  const std::lock_guard lock(state().mutex);
  return state().misuse;
}

void fake_cuda_forget_misuse() {
  const std::lock_guard lock(state().mutex);
  state().misuse.clear();
}

FakeLive fake_cuda_live() {
  gpu::State& s = state();
  const std::lock_guard lock(s.mutex);
  FakeLive live;
  for (const auto& [device, context] : s.contexts) live.contexts += context.retained;
  for (const auto& [base, memory] : s.memory) {
    live.memory += memory.kind == gpu::Kind::device;
    live.imported += memory.opens;
    live.host += memory.kind == gpu::Kind::host || memory.kind == gpu::Kind::registered;
  }
  live.streams = static_cast<int>(s.streams.size());
  live.events = static_cast<int>(s.events.size());
  live.modules = static_cast<int>(s.modules.size());
  return live;
}

FAKE_CUDA(cuInit, (unsigned flags)) {
  ENTER("cuInit", nothing);
  gpu::State& s = state();
  if (flags != 0) return cu::kInvalidValue;
  if (s.pid != 0 && s.pid != getpid()) return gpu::misused("in a forked child", cu::kNotInitialized);
  s.pid = getpid();
  return s.machine.devices > 0 ? cu::kSuccess : cu::kNoDevice;
}

FAKE_CUDA(cuDriverGetVersion, (int* version)) {
  ENTER("cuDriverGetVersion", nothing);
  *version = state().machine.version;
  return cu::kSuccess;
}

FAKE_CUDA(cuGetErrorName, (cu::Result result, const char** text)) {
  static const std::map<int, const char*> names = {
      {0, "CUDA_SUCCESS"},
      {1, "CUDA_ERROR_INVALID_VALUE"},
      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {3, "CUDA_ERROR_NOT_INITIALIZED"},
      {100, "CUDA_ERROR_NO_DEVICE"},
      {101, "CUDA_ERROR_INVALID_DEVICE"},
      {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {400, "CUDA_ERROR_INVALID_HANDLE"},
      {500, "CUDA_ERROR_NOT_FOUND"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
  };
  const auto found = names.find(result);
  *text = found == names.end() ? nullptr : found->second;
  return *text ? cu::kSuccess : cu::kInvalidValue;
}

FAKE_CUDA(cuGetErrorString, (cu::Result result, const char** text)) {
  *text = result == cu::kOutOfMemory ? "out of memory" : "as the fake driver was told";
  return cu::kSuccess;
}

FAKE_CUDA(cuDeviceGetCount, (int* count)) {
  ENTER("cuDeviceGetCount", init);
  *count = state().machine.devices;
  return cu::kSuccess;
}

FAKE_CUDA(cuDeviceGet, (cu::Device * device, int ordinal)) {
  ENTER("cuDeviceGet", init);
  if (ordinal < 0 || ordinal >= state().machine.devices) return cu::kInvalidDevice;
  *device = ordinal;
  return cu::kSuccess;
}

FAKE_CUDA(cuDeviceGetName, (char* name, int size, cu::Device)) {
  ENTER("cuDeviceGetName", init);
  std::snprintf(name, static_cast<size_t>(size), "Fake GPU");
  return cu::kSuccess;
}

FAKE_CUDA(cuDeviceGetUuid_v2, (cu::Uuid * uuid, cu::Device device)) {
  ENTER("cuDeviceGetUuid_v2", init);
  std::memset(uuid->bytes, 0xfa, sizeof uuid->bytes);
  uuid->bytes[15] = static_cast<uint8_t>(state().machine.first + device);
  return cu::kSuccess;
}

FAKE_CUDA(cuDeviceGetAttribute, (int* value, cu::Attribute attribute, cu::Device device)) {
  ENTER("cuDeviceGetAttribute", init);
  const std::map<int, int> values = {
      {cu::kMultiprocessorCount, 132},
      {cu::kCanMapHostMemory, 1},
      {cu::kComputeMode, state().machine.compute_mode},
      {cu::kPciDomainId, 0},
      {cu::kPciBusId, 0x3b + device},
      {cu::kPciDeviceId, 0},
      {cu::kAsyncEngineCount, 3},
      {cu::kUnifiedAddressing, 1},
      {cu::kComputeCapabilityMajor, 9},
      {cu::kComputeCapabilityMinor, 0},
  };
  const auto found = values.find(attribute);
  if (found == values.end()) return gpu::misused("attribute " + std::to_string(attribute));
  *value = found->second;
  return cu::kSuccess;
}

FAKE_CUDA(cuDeviceCanAccessPeer, (int* can, cu::Device device, cu::Device peer)) {
  ENTER("cuDeviceCanAccessPeer", init);
  if (device == peer) return gpu::misused("asked of one device and itself", cu::kInvalidDevice);
  *can = state().machine.peer_access;
  return cu::kSuccess;
}

FAKE_CUDA(cuDevicePrimaryCtxRetain, (cu::Context * *context, cu::Device device)) {
  ENTER("cuDevicePrimaryCtxRetain", init);
  const std::lock_guard lock(state().mutex);
  cu::Context& made = state().contexts[device];
  made.device = device;
  ++made.retained;
  *context = &made;
  return cu::kSuccess;
}

FAKE_CUDA(cuDevicePrimaryCtxRelease_v2, (cu::Device device)) {
  ENTER("cuDevicePrimaryCtxRelease_v2", init);
  cu::Stream* gone = nullptr;
  bool empty = true;
  {
    const std::lock_guard lock(state().mutex);
    cu::Context& context = state().contexts[device];
    if (context.retained == 0) return cu::kInvalidContext;
    if (--context.retained > 0) return cu::kSuccess;
    for (const auto& [base, memory] : state().memory) empty &= memory.context != &context;
    for (const cu::Stream* stream : state().streams) empty &= stream->context != &context;
    if (const auto found = state().default_streams.find(&context); found != state().default_streams.end()) {
      gone = found->second;
      state().default_streams.erase(found);
    }
  }
  delete gone;
  return empty ? cu::kSuccess : gpu::misused("the last one, with memory or streams still there", cu::kSuccess);
}

FAKE_CUDA(cuCtxGetCurrent, (cu::Context * *context)) {
  ENTER("cuCtxGetCurrent", init);
  *context = gpu::current_context;
  return cu::kSuccess;
}

FAKE_CUDA(cuCtxSetCurrent, (cu::Context * context)) {
  ENTER("cuCtxSetCurrent", init);
  gpu::current_context = context;
  return cu::kSuccess;
}

}  // namespace ringcomm::test
