#include "cuda/driver.h"

#include <dlfcn.h>

#include <type_traits>

namespace ringcomm::cuda {

std::string Driver::text(cu::Result result) const {
  const char *name = nullptr, *sentence = nullptr;
  if (error_name == nullptr || error_name(result, &name) != cu::kSuccess || name == nullptr) name = "CUresult";
  if (error_string == nullptr || error_string(result, &sentence) != cu::kSuccess) sentence = nullptr;
  return std::string(name) + " (" + std::to_string(result) + ")" + (sentence ? std::string(": ") + sentence : "");
}

bool open_driver(const char* library, Driver& driver, std::string& why_not) {
  void* const opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* text = dlerror();
    why_not = std::string(library) + " cannot be opened (" + (text ? text : "no reason given") + ")";
    return false;
  }
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(opened, symbol));
    if (function == nullptr && missing == nullptr) missing = symbol;
  };
#define RINGCOMM_DRIVER_FIND(member, symbol, types) find(driver.member, #symbol);
  RINGCOMM_DRIVER_FUNCTIONS(RINGCOMM_DRIVER_FIND)
#undef RINGCOMM_DRIVER_FIND
  if (missing != nullptr) {
    why_not = std::string(library) + " has no " + missing + ": the driver is too old";
    return false;
  }
  if (const cu::Result result = driver.init(0); result != cu::kSuccess) {
    why_not = "cuInit of " + std::string(library) + ": " + driver.text(result);
    return false;
  }
  int devices = 0;
  const cu::Result result = driver.device_count(&devices);
  if (result == cu::kSuccess && devices > 0) return true;
  why_not = std::string(library) + " finds no device" + (result == cu::kSuccess ? "" : ": " + driver.text(result));
  return false;
}

Current::Current(const Driver& driver, int ordinal) : driver_(driver) {
  cu::Context* context = nullptr;
  const auto good = [&](cu::Result result, const char* what) {
    if (result == cu::kSuccess) return true;
    error_ = std::string(what) + " of device " + std::to_string(ordinal) + ": " + driver_.text(result);
    return false;
  };
  if (!good(driver.get_current(&before_), "cuCtxGetCurrent")) return;
  if (!good(driver.device_get(&device_, ordinal), "cuDeviceGet")) return;
  if (!good(driver.primary_retain(&context, device_), "cuDevicePrimaryCtxRetain")) return;
  retained_ = true;
  good(driver.set_current(context), "cuCtxSetCurrent");
}

Current::~Current() {
  if (!retained_) return;
  driver_.set_current(before_);
  driver_.primary_release(device_);
}

}  // namespace ringcomm::cuda
