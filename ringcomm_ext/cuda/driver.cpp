#include "cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>

namespace ringcomm::cuda {
namespace {

struct Opened {
  Driver driver;
  std::string why_not;
  pid_t pid = 0;
};

// cuGetErrorName of an absent, stubbed or half-loaded driver has no answer; these are what people meet then.
const char* own_name(cu::Result result) {
  switch (result) {
    case cu::kNotInitialized:
      return "CUDA_ERROR_NOT_INITIALIZED";
    case cu::kStubLibrary:
      return "CUDA_ERROR_STUB_LIBRARY";
    case cu::kNoDevice:
      return "CUDA_ERROR_NO_DEVICE";
    case cu::kSystemDriverMismatch:
      return "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
    default:
      return "unknown CUDA error";
  }
}

// What the failures of cuInit most often mean, for who has never seen them.
const char* meaning(cu::Result result) {
  switch (result) {
    case cu::kStubLibrary:
      return ": this is the toolkit's library for linking, not a driver; take its folder out of LD_LIBRARY_PATH";
    case cu::kNoDevice:
      return ": the driver sees no GPU (none there, or CUDA_VISIBLE_DEVICES hides all)";
    case cu::kSystemDriverMismatch:
      return ": library and kernel module are of different versions; restart the machine after an update";
    case cu::kUnknown:
      return ": most often the kernel module is not loaded or /dev/nvidia* may not be opened";
    default:
      return "";
  }
}

bool find_all(void* library, const std::string& path, cu::Table& table, std::string& why_not) {
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && why_not.empty())
      why_not = path + " has no " + name + ": it is too old (CUDA 11.7 or newer is needed)";
  };
#define RINGCOMM_FIND(member, name, parameters) find(table.member, #name);
  RINGCOMM_CUDA_FUNCTIONS(RINGCOMM_FIND)
#undef RINGCOMM_FIND
  return why_not.empty();
}

std::unique_ptr<Opened> open(const std::string& path) {
  auto opened = std::make_unique<Opened>();
  opened->pid = getpid();
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    opened->why_not = path + " cannot be opened (" + (text ? text : "no reason given") + "): no CUDA driver here";
    return opened;
  }
  if (find_all(library, path, opened->driver.table, opened->why_not)) start_driver(opened->driver, opened->why_not);
  return opened;
}

}  // namespace

bool start_driver(Driver& driver, std::string& why_not) {
  const auto good = [&](cu::Result result, const char* call) {
    if (result == cu::kSuccess) return true;
    why_not = std::string(call) + " failed with " + result_text(driver.table, result) + meaning(result);
    return false;
  };
  if (!good(driver.table.init(0), "cuInit") ||
      !good(driver.table.driver_version(&driver.version), "cuDriverGetVersion"))
    return false;
  return good(driver.table.device_count(&driver.devices), "cuDeviceGetCount") &&
         good(driver.devices > 0 ? cu::kSuccess : cu::kNoDevice, "cuDeviceGetCount");
}

const Driver* open_driver(const std::string& path, std::string& why_not) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::string, std::unique_ptr<Opened>>;  // leaked: threads may outlive main
  const std::lock_guard lock(mutex);
  auto& opened = all[path];
  if (!opened) opened = open(path);
  why_not = opened->why_not;
  if (why_not.empty() && opened->pid != getpid())
    why_not = "this process was forked from one that uses CUDA (" + std::to_string(opened->pid) +
              "): the driver does not work in such a child; start it with spawn or forkserver";
  return why_not.empty() ? &opened->driver : nullptr;
}

std::string result_text(const cu::Table& table, cu::Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (table.error_name(result, &name) != cu::kSuccess || name == nullptr) name = own_name(result);
  if (table.error_string(result, &text) != cu::kSuccess) text = nullptr;
  return std::string(name) + " (" + std::to_string(result) + ")" + (text ? std::string(": ") + text : "");
}

bool succeeded(const cu::Table& table, cu::Result result, const char* call, const std::string& what, Error& error) {
  if (result == cu::kSuccess) return true;
  error = {};
  // Not `internal`: most of these are the machine's doing.
  error.cause = result == cu::kOutOfMemory ? Cause::no_memory : Cause::connection;
  const std::string text =
      std::string(call) + " failed with " + result_text(table, result) + (what.empty() ? "" : "; " + what);
  std::snprintf(error.text, sizeof error.text, "%s", text.c_str());
  return false;
}

}  // namespace ringcomm::cuda
