#include "c10d/registered.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "core/log.h"
#include "engine/process.h"

namespace ringcomm {
namespace {

// torch's profiler counts CPU memory by these calls of its allocators.
void* reported(char* data, size_t bytes) {
  c10::profiledCPUMemoryReporter().New(data, bytes);
  return data;
}

// False: the memory is no heap's. A heap inherited by fork is left alone: Heap::release.
bool release_registered(void* data) {
  Heap* heap = heap_of(data);
  if (heap == nullptr) return false;
  c10::profiledCPUMemoryReporter().Delete(data);
  heap->release(data);
  return true;
}

c10::DataPtr owned(void* data, c10::DeleterFnPtr deleter) { return {data, data, deleter, c10::Device(c10::kCPU)}; }

class RegisteredAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return owned(nullptr, &free_data);
    Heap* heap = process_heap();
    TORCH_CHECK_VALUE(heap != nullptr, "ringcomm: this process has no registered memory yet");
    Error error;
    char* data = heap->allocate(n, error);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, error.text);
    return owned(reported(data, n), &free_data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }
  void copy_data(void* dest, const void* src, size_t count) const override { default_copy_data(dest, src, count); }

 private:
  static void free_data(void* data) {
    if (data != nullptr) release_registered(data);
  }
};

// In front of the allocator that was torch's: takes what is large enough for the heap, hands on the rest. Never destroyed, like torch's own.
class FrontAllocator final : public c10::Allocator {
 public:
  explicit FrontAllocator(c10::Allocator* behind) { behind_ = behind; }
  void set_min_bytes(size_t bytes) { min_bytes_.store(bytes, std::memory_order_relaxed); }

  c10::DataPtr allocate(size_t n) override {
    if (n > 0 && n >= min_bytes_.load(std::memory_order_relaxed))
      if (char* data = from_heap(n)) return owned(reported(data, n), &free_data);
    return owned(behind_->raw_allocate(n), &free_data);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }
  void copy_data(void* dest, const void* src, size_t count) const override { default_copy_data(dest, src, count); }

 private:
  // Null in a forked child, which has no peers to read it, and where the heap is full: then torch's memory serves as well, only slower.
  char* from_heap(size_t n) {
    Heap* heap = process_heap();
    if (heap == nullptr) return nullptr;
    Error error;
    char* data = heap->allocate(n, error);
    if (data == nullptr && !said_.exchange(true))
      log(LogLevel::warn, std::string(error.text) + " (torch's own memory is used instead; said once)");
    return data;
  }
  static void free_data(void* data) {
    if (data != nullptr && !release_registered(data)) behind_->raw_deallocate(data);
  }

  static inline c10::Allocator* behind_ = nullptr;
  std::atomic<size_t> min_bytes_{SIZE_MAX};
  std::atomic<bool> said_{false};
};

}  // namespace

c10::Allocator& registered_allocator() {
  static auto* allocator = new RegisteredAllocator;  // leaked: tensors outlive static destruction
  return *allocator;
}

at::Tensor registered_empty(at::IntArrayRef sizes, at::ScalarType type) {
  return at::detail::empty_generic(sizes, &registered_allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU), type,
                                   std::nullopt);
}

bool is_registered(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.has_storage()) return false;
  const Heap* heap = process_heap();
  return heap != nullptr && heap->contains(tensor.storage().data());
}

void serve_cpu_memory(size_t min_bytes) {
  static std::mutex mutex;
  static FrontAllocator* front = nullptr;
  const std::lock_guard<std::mutex> hold(mutex);
  if (front == nullptr) {
    if (min_bytes == SIZE_MAX) return;
    c10::Allocator* behind = c10::GetCPUAllocator();
    TORCH_CHECK_VALUE(behind->raw_deleter() != nullptr,
                      "ringcomm: use_registered_memory: the CPU allocator of this process was replaced by one whose "
                      "memory cannot be freed by address");
    front = new FrontAllocator(behind);
    c10::SetCPUAllocator(front, UINT8_MAX);
  }
  front->set_min_bytes(min_bytes);
}

}  // namespace ringcomm
