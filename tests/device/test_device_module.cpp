#include <c10/core/DeviceGuard.h>
#include <torch/extension.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string>

#include "test_device.h"

namespace test_device {
namespace {

namespace fake = ringcomm::test;
std::atomic<int64_t> tickets{0}, opened{0};

cu::Function* kernel(c10::DeviceIndex device, const std::string& name) {
  static std::map<std::pair<c10::DeviceIndex, std::string>, cu::Function*> all;
  if (const auto found = all.find({device, name}); found != all.end()) return found->second;
  cu::Module* module;
  check(driver().module_load(&module, fake::fake_cuda_image()), "cuModuleLoadData");
  cu::Function*& made = all[{device, name}];
  check(driver().module_function(&made, module, name.c_str()), "cuModuleGetFunction");
  return made;
}

void launch(const std::string& name, int64_t number) {
  const c10::DeviceIndex device = current_device();
  const InContext in(device);
  void* parameters[] = {&number};
  check(driver().launch(kernel(device, name), 1, 1, 1, 1, 1, 1, 0, handle(current_stream(device)), parameters, nullptr),
        "cuLaunchKernel");
}

void register_kernels() {
  const auto number = [](const fake::FakeLaunch& launch) { return *static_cast<const int64_t*>(launch.parameter); };
  fake::fake_cuda_kernel("test_device_delay", sizeof(int64_t),
                         [=](const fake::FakeLaunch& l) { usleep(static_cast<useconds_t>(number(l))); });
  fake::fake_cuda_kernel("test_device_hold", sizeof(int64_t), [=](const fake::FakeLaunch& l) {
    while (opened < number(l)) usleep(200);
  });
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
    register_kernels();
  });
  m.def("image", [] { return py::bytes(static_cast<const char*>(fake::fake_cuda_image()), 4); });
  m.def("current_device", &current_device);
  m.def("device_count", [] { return c10::impl::getDeviceGuardImpl(kType)->deviceCount(); });
  m.def("set_device",
        [](c10::DeviceIndex device) { c10::impl::getDeviceGuardImpl(kType)->setDevice(c10::Device(kType, device)); });
  // The current stream does nothing else for so long; or until open(), which is for all streams that are held.
  m.def("delay", [](double seconds) { launch("test_device_delay", static_cast<int64_t>(seconds * 1e6)); });
  m.def("hold", [] { launch("test_device_hold", ++tickets); });
  m.def("open", [] { opened = tickets.load(); });
  m.def("misuse", &fake::fake_cuda_misuse);
  m.def("calls", &fake::fake_cuda_calls);
  m.def("fail", [](const std::string& name, int nth) { fake::fake_cuda_fail(name, nth, cu::kOutOfMemory); });
  m.def("live", &live);
  m.def("capture",
        [](bool on) { fake::fake_cuda_capture(handle(current_stream(current_device())), on, cu::kCaptureGlobal); });
  m.def("replay", [] { fake::fake_cuda_replay(handle(current_stream(current_device()))); });
}
