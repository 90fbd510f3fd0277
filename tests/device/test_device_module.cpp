#include <c10/core/DeviceGuard.h>
#include <torch/extension.h>
#include <unistd.h>

#include <map>

#include "test_device.h"

namespace test_device {
namespace {

namespace fake = ringcomm::test;
constexpr const char* kDelay = "test_device_delay";

cu::Function* delay_kernel(c10::DeviceIndex device) {
  static std::map<c10::DeviceIndex, cu::Function*> all;
  if (const auto found = all.find(device); found != all.end()) return found->second;
  fake::fake_cuda_kernel(kDelay, sizeof(int64_t), [](const fake::FakeLaunch& launch) {
    usleep(static_cast<useconds_t>(*static_cast<const int64_t*>(launch.parameter)));
  });
  cu::Module* module;
  check(driver().module_load(&module, fake::fake_cuda_image()), "cuModuleLoadData");
  check(driver().module_function(&all[device], module, kDelay), "cuModuleGetFunction");
  return all[device];
}

// The current stream does nothing else for so long.
void delay(double seconds) {
  const c10::DeviceIndex device = current_device();
  const InContext in(device);
  auto us = static_cast<int64_t>(seconds * 1e6);
  void* parameters[] = {&us};
  check(driver().launch(delay_kernel(device), 1, 1, 1, 1, 1, 1, 0, handle(current_stream(device)), parameters, nullptr),
        "cuLaunchKernel");
}

py::dict live() {
  const fake::FakeLive live = fake::fake_cuda_live();
  py::dict d;
  d["memory"] = live.memory, d["imported"] = live.imported, d["host"] = live.host;
  return d;
}

}  // namespace
}  // namespace test_device

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace test_device;
  // Before anything else.
  m.def("machine", [](int devices) {
    fake::FakeMachine machine;
    machine.devices = devices;
    fake::fake_cuda_reset(machine);
    (void)fake::fake_cuda();
  });
  m.def("image", [] { return py::bytes(static_cast<const char*>(fake::fake_cuda_image()), 4); });
  m.def("current_device", &current_device);
  m.def("device_count", [] { return c10::impl::getDeviceGuardImpl(kType)->deviceCount(); });
  m.def("set_device", [](c10::DeviceIndex device) {
    c10::impl::getDeviceGuardImpl(kType)->setDevice(c10::Device(kType, device));
  });
  m.def("delay", &delay);
  m.def("misuse", &fake::fake_cuda_misuse);
  m.def("calls", &fake::fake_cuda_calls);
  m.def("live", &live);
  m.def("capture", [](bool on) { fake::fake_cuda_capture(handle(current_stream(current_device())), on); });
  m.def("replay", [] { fake::fake_cuda_replay(handle(current_stream(current_device()))); });
}
