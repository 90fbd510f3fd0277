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

}  // namespace ringcomm
