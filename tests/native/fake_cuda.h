// A CUDA driver on CPUs, behind the table of cuda/driver.h: device memory is shared memory that other processes open by handle, a stream is a thread, kernels are
// functions registered by name. It keeps the rules that a caller could break unnoticed: a context must be current, a process does not open its own handle, memory is freed once.
//
// Captures, several devices and copies between them are not there.
#pragma once

#include <cstddef>

#include "cuda/driver.h"

namespace ringcomm::test {

// What runs for a launch: the one argument (`bytes` of it were copied when it was launched), blocks, threads of each. Comes back when all are through.
using FakeKernel = void (*)(const void* argument, unsigned blocks, unsigned threads);
void fake_cuda_kernel(const char* name, size_t bytes, FakeKernel kernel);

// The table, initialised.
cuda::Driver fake_cuda();

// Allocations, openings, streams and events of this process that are still there.
int fake_cuda_left();

// The image that module_load of this driver takes, and no other.
inline constexpr char kFakeImage[] = "kernels of a fake driver";

}  // namespace ringcomm::test
