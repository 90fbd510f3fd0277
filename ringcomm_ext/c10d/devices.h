// Which tensors beside the CPU's this process takes.
#pragma once

#include <ATen/ATen.h>

#include "device/runtimes.h"

namespace ringcomm {

// Tensors of this type are taken from here on, over this driver. One type in a process; before the first call with such a tensor.
void take_devices(c10::DeviceType type, const DeviceSource& source);
bool takes_device(c10::DeviceType type);

// Throws a ValueError that names operation, argument and device where a tensor that is not the CPU's cannot be taken.
void check_device(const at::Tensor& tensor, const char* what, const char* argument);

}  // namespace ringcomm
