#include "device/runtimes.h"

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/driver_runtime.h"
#include "cuda/kernels.h"

namespace ringcomm {
namespace {

struct Process {
  std::mutex mutex;
  DeviceSource source;
  std::map<int, std::unique_ptr<cuda::DriverRuntime>> runtimes;
};
Process& process() {
  static Process& all = *new Process;  // leaked: streams may run until the process ends
  return all;
}

bool read_kernels(const DeviceSource& source, std::string& image, Error& error) {
  if (source.kernels.empty())
    return cuda::refuse(Cause::internal, "this build has no CUDA kernels: " + source.missing, error);
  std::ifstream file(source.kernels, std::ios::binary);
  image.assign(std::istreambuf_iterator<char>(file), {});
  return !image.empty() ||
         cuda::refuse(Cause::internal, "the CUDA kernels cannot be read from " + source.kernels, error);
}

}  // namespace

void set_device_source(const DeviceSource& source) {
  const std::lock_guard<std::mutex> hold(process().mutex);
  process().source = source;
}

DeviceSource device_source() {
  const std::lock_guard<std::mutex> hold(process().mutex);
  return process().source;
}

cuda::DeviceRuntime* device_runtime(int ordinal, Error& error) {
  Process& p = process();
  const std::lock_guard<std::mutex> hold(p.mutex);
  if (const auto found = p.runtimes.find(ordinal); found != p.runtimes.end()) return found->second.get();
  std::string why_not, image;
  const cuda::Driver* driver = cuda::open_driver(p.source.driver, why_not);
  if (driver == nullptr) {
    cuda::refuse(Cause::internal, why_not, error);
    return nullptr;
  }
  if (!read_kernels(p.source, image, error)) return nullptr;
  auto runtime = cuda::DriverRuntime::open(*driver, ordinal, error);
  if (!runtime || !runtime->load_kernels(image.data(), cuda::kernel_names(), error)) return nullptr;
  return (p.runtimes[ordinal] = std::move(runtime)).get();
}

bool stream_is_capturing(int ordinal, cuda::StreamHandle stream, bool& out, Error& error) {
  std::string why_not;
  out = false;
  const cuda::Driver* driver = cuda::open_driver(device_source().driver, why_not);
  if (driver == nullptr) return true;
  const cu::Table& t = driver->table;
  const auto good = [&](cu::Result result, const char* call) { return cuda::succeeded(t, result, call, "", error); };
  cu::Device device;
  cu::Context *context, *before;
  cu::CaptureStatus status = cu::kCaptureNone;
  // The primary context, which is there: the caller has a tensor on the device.
  if (!good(t.device_get(&device, ordinal), "cuDeviceGet") ||
      !good(t.context_get_current(&before), "cuCtxGetCurrent") ||
      !good(t.context_retain(&context, device), "cuDevicePrimaryCtxRetain"))
    return false;
  const bool asked = good(t.context_set_current(context), "cuCtxSetCurrent") &&
                     good(t.stream_capturing(stream, &status), "cuStreamIsCapturing") &&
                     good(t.context_set_current(before), "cuCtxSetCurrent");
  (void)t.context_release(device);
  out = status != cu::kCaptureNone;
  return asked;
}

}  // namespace ringcomm
