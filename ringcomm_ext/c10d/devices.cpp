#include "c10d/devices.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>

namespace ringcomm {
namespace {

std::atomic<c10::DeviceType> taken{c10::kCUDA};

}  // namespace

void take_devices(c10::DeviceType type, const DeviceSource& source) {
  set_device_source(source);
  taken.store(type);
}

bool takes_device(c10::DeviceType type) { return type == taken.load() && c10::impl::hasDeviceGuardImpl(type); }

void check_device(const at::Tensor& tensor, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(takes_device(tensor.device().type()), "ringcomm: ", what, ": ", argument, " is on ",
                    tensor.device(), "; only tensors of the CPU and of ", c10::DeviceTypeName(taken.load(), true),
                    " devices are handled");
  TORCH_CHECK_VALUE(!tensor.is_quantized(), "ringcomm: ", what, ": ", argument,
                    " is quantized; on devices such tensors are not handled");
}

}  // namespace ringcomm
