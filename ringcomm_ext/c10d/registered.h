// Registered memory as torch sees it: an allocator of its own, and one that stands in front of torch's.
// Throws torch's exceptions. Any thread.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

namespace ringcomm {

// Of this process's heap. Throws OutOfMemoryError (the text of Heap::allocate), or ValueError where no heap was started.
c10::Allocator& registered_allocator();

// Uninitialised, contiguous, on the CPU.
at::Tensor registered_empty(at::IntArrayRef sizes, at::ScalarType type);

// Whether the tensor's memory lies in this process's heap, where lending can find it.
bool is_registered(const at::Tensor& tensor);

// From now on CPU memory of at least `min_bytes` comes from the heap while it has room, the rest as before. SIZE_MAX: all as before.
void serve_cpu_memory(size_t min_bytes);

}  // namespace ringcomm
