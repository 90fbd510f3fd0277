#include "cuda/driver_runtime.h"

#include <unistd.h>

#include "core/log.h"
#include "cuda/driver_inside.h"

namespace ringcomm::cuda {
namespace {

constexpr useconds_t kLookUs = 50;  // between looks at a stream that is to drain

}  // namespace

std::string text_of(const cu::Uuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", uuid.bytes[i]);
    text += (i == 4 || i == 6 || i == 8 || i == 10) ? std::string("-") + two : two;
  }
  return text;
}

std::unique_ptr<DriverRuntime> DriverRuntime::open(const Driver& driver, int ordinal, Error& error) {
  const cu::Table& t = driver.table;
  const std::string what = "device " + std::to_string(ordinal) + " of " + std::to_string(driver.devices);
  cu::Device device;
  cu::Context* context;
  if (!succeeded(t, t.device_get(&device, ordinal), "cuDeviceGet", what, error) ||
      !succeeded(t, t.context_retain(&context, device), "cuDevicePrimaryCtxRetain", what, error))
    return nullptr;
  std::unique_ptr<DriverRuntime> made(new DriverRuntime(driver, device, context));
  if (!made->read_facts(ordinal, error) || !made->make_stream(made->service_, error)) return nullptr;
  return made;
}

DriverRuntime::~DriverRuntime() {
  if (service_ != nullptr) destroy(service_);
  if (module_ != nullptr) {
    Error error;
    if (const Current current{*this, error}) released(t_.module_unload(module_), "cuModuleUnload");
  }
  released(t_.context_release(device_), "cuDevicePrimaryCtxRelease");
}

bool DriverRuntime::read_facts(int ordinal, Error& error) {
  char name[256] = {};
  if (!good(t_.device_name(name, sizeof name, device_), "cuDeviceGetName", error) ||
      !good(t_.device_uuid(&uuid_, device_), "cuDeviceGetUuid", error))
    return false;
  int mode = 0, domain = 0, bus = 0, slot = 0, unified = 0, maps = 0;
  const std::pair<cu::Attribute, int*> wanted[] = {
      {cu::kComputeCapabilityMajor, &facts_.major},
      {cu::kComputeCapabilityMinor, &facts_.minor},
      {cu::kMultiprocessorCount, &facts_.multiprocessors},
      {cu::kAsyncEngineCount, &facts_.copy_engines},
      {cu::kComputeMode, &mode},
      {cu::kPciDomainId, &domain},
      {cu::kPciBusId, &bus},
      {cu::kPciDeviceId, &slot},
      {cu::kUnifiedAddressing, &unified},
      {cu::kCanMapHostMemory, &maps},
  };
  for (const auto& [attribute, value] : wanted)
    if (!good(t_.device_attribute(value, attribute, device_), "cuDeviceGetAttribute", error,
              "attribute " + std::to_string(attribute)))
      return false;
  facts_.ordinal = ordinal;
  facts_.name = name;
  facts_.uuid = text_of(uuid_);
  for (const uint8_t byte : this_process()) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    facts_.process += two;
  }
  facts_.one_process = mode == cu::kComputeModeExclusiveProcess;
  facts_.driver_version = driver_.version;
  char pci[32];
  std::snprintf(pci, sizeof pci, "%04x:%02x:%02x.0", domain, bus, slot);
  facts_.pci = pci;
  if (unified && maps) return true;
  return refuse(Cause::connection, facts_.name + " has no unified addresses or cannot map host memory", error);
}

// A failing release has nobody to tell but the log; most often the context is lost, and all with it.
void DriverRuntime::released(cu::Result result, const char* call) const {
  if (result != cu::kSuccess)
    log(LogLevel::warn, std::string("cuda: ") + call + " failed with " + result_text(t_, result));
}

// Streams and events.

bool DriverRuntime::make_stream(StreamHandle& out, Error& error) {
  const Current current(*this, error);
  return current && good(t_.stream_create(&out, cu::kStreamNonBlocking), "cuStreamCreate", error);
}

void DriverRuntime::destroy(StreamHandle stream) {
  Error error;
  if (const Current current{*this, error}) released(t_.stream_destroy(stream), "cuStreamDestroy");
}

bool DriverRuntime::make_event(EventHandle& out, Error& error) {
  const Current current(*this, error);
  return current && good(t_.event_create(&out, cu::kEventDisableTiming), "cuEventCreate", error);
}

void DriverRuntime::destroy(EventHandle event) {
  Error error;
  if (const Current current{*this, error}) released(t_.event_destroy(event), "cuEventDestroy");
}

bool DriverRuntime::record(EventHandle event, StreamHandle stream, Error& error) {
  const Current current(*this, error);
  return current && good(t_.event_record(event, stream), "cuEventRecord", error);
}

bool DriverRuntime::wait_event(StreamHandle stream, EventHandle event, Error& error) {
  const Current current(*this, error);
  return current && good(t_.stream_wait_event(stream, event, 0), "cuStreamWaitEvent", error);
}

bool DriverRuntime::answered(cu::Result result, const char* call, bool& out, Error& error) const {
  if (result != cu::kNotReady && !good(result, call, error)) return false;
  out = result == cu::kSuccess;
  return true;
}

bool DriverRuntime::done(EventHandle event, bool& out, Error& error) {
  const Current current(*this, error);
  return current && answered(t_.event_query(event), "cuEventQuery", out, error);
}

bool DriverRuntime::done(StreamHandle stream, bool& out, Error& error) {
  const Current current(*this, error);
  return current && answered(t_.stream_query(stream), "cuStreamQuery", out, error);
}

bool DriverRuntime::drain(StreamHandle stream, int64_t deadline_ns, Error& error) {
  for (bool is_done = false;; usleep(kLookUs)) {
    if (!done(stream, is_done, error)) return false;
    if (is_done) return true;
    if (now_ns() > deadline_ns)
      return refuse(Cause::timeout, "a stream of device " + std::to_string(facts_.ordinal) + " is still busy", error);
  }
}

bool DriverRuntime::capturing(StreamHandle stream, bool& out, Error& error) {
  const Current current(*this, error);
  cu::CaptureStatus status = cu::kCaptureNone;
  if (!current || !good(t_.stream_capturing(stream, &status), "cuStreamIsCapturing", error)) return false;
  if (status == cu::kCaptureInvalidated)
    return refuse(Cause::connection, "the capture of this stream into a graph has failed before", error);
  out = status == cu::kCaptureActive;
  return true;
}

bool DriverRuntime::look_beside_captures(Error& error) {
  cu::CaptureMode mode = cu::kCaptureRelaxed;
  return exchange_capture_mode(mode, error);
}

bool DriverRuntime::exchange_capture_mode(cu::CaptureMode& mode, Error& error) {
  return good(t_.exchange_capture_mode(&mode), "cuThreadExchangeStreamCaptureMode", error);
}

// Work.

bool DriverRuntime::copy(char* to, const char* from, size_t bytes, StreamHandle stream, Error& error) {
  const Current current(*this, error);
  return current && good(t_.copy(address(to), address(from), bytes, stream), "cuMemcpyAsync", error);
}

bool DriverRuntime::zero(char* to, size_t bytes, StreamHandle stream, Error& error) {
  const Current current(*this, error);
  return current && good(t_.set_bytes(address(to), 0, bytes, stream), "cuMemsetD8Async", error);
}

bool DriverRuntime::write_flag(uint32_t* flag, uint32_t value, StreamHandle stream, Error& error) {
  const Current current(*this, error);
  return current &&
         good(t_.write_value(stream, address(flag), value, cu::kWriteDefault), "cuStreamWriteValue32", error);
}

bool DriverRuntime::wait_flag(const uint32_t* flag, uint32_t value, StreamHandle stream, Error& error) {
  const Current current(*this, error);
  return current &&
         good(t_.wait_value(stream, address(flag), value, cu::kWaitGreaterEqual), "cuStreamWaitValue32", error);
}

bool DriverRuntime::load_kernels(const void* image, const std::vector<std::string>& names, Error& error) {
  const Current current(*this, error);
  cu::Module* module;
  const std::string target = "compute capability " + std::to_string(facts_.major) + "." + std::to_string(facts_.minor);
  if (!current || !good(t_.module_load(&module, image), "cuModuleLoadData", error, target)) return false;
  std::map<std::string, cu::Function*> found;
  for (const std::string& name : names)
    if (!good(t_.module_function(&found[name], module, name.c_str()), "cuModuleGetFunction", error, name)) {
      released(t_.module_unload(module), "cuModuleUnload");
      return false;
    }
  module_ = module;
  kernels_ = std::move(found);
  return true;
}

bool DriverRuntime::launch(const std::string& kernel, unsigned blocks, unsigned threads, const void* parameter,
                           StreamHandle stream, Error& error) {
  const Current current(*this, error);
  if (!current) return false;
  const auto found = kernels_.find(kernel);
  if (found == kernels_.end()) return refuse(Cause::internal, "no kernel " + kernel + " was loaded", error);
  void* parameters[] = {const_cast<void*>(parameter)};
  return good(t_.launch(found->second, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr), "cuLaunchKernel",
              error, kernel);
}

}  // namespace ringcomm::cuda
