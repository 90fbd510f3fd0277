#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/StorageImpl.h>

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "test_device.h"

namespace test_device {
namespace {

constexpr size_t kPart = 512;          // sizes are multiples of it
constexpr size_t kChunk = 4 << 20;     // of the driver at once
constexpr unsigned char kGone = 0xee;  // what freed memory is written over with: no sensible number of any type

struct Block {
  size_t bytes;
  c10::DeviceIndex device;
  c10::StreamId stream;  // that it was allocated in
};

// Never gives memory back to the driver, whose free would wait for all streams. What was freed is used again by the stream that had it, as in CUDA's caching allocator: for any other one
// it would not be free yet.
struct Memory {
  std::mutex mutex;
  std::map<std::tuple<c10::DeviceIndex, c10::StreamId, size_t>, std::vector<char*>> free;
  std::map<c10::DeviceIndex, std::pair<char*, size_t>> rest;  // of the latest chunk
  std::map<char*, Block> used;
};
Memory& memory() {
  static Memory& all = *new Memory;
  return all;
}

char* from_driver(size_t bytes) {
  cu::DevicePtr made;
  check(driver().mem_alloc(&made, bytes), "cuMemAlloc");
  return reinterpret_cast<char*>(made);
}

char* take(const Block& wanted) {
  const auto [bytes, device, stream] = wanted;
  auto& same = memory().free[{device, stream, bytes}];
  if (!same.empty()) {
    char* const again = same.back();  // the latest one: most likely still in use by whoever did not order its streams
    same.pop_back();
    return again;
  }
  if (bytes > kChunk / 4) return from_driver(bytes);
  auto& [at, left] = memory().rest[device];
  if (left < bytes) at = from_driver(kChunk), left = kChunk;
  left -= bytes;
  return std::exchange(at, at + bytes);
}

void give_back(void* data) {
  Memory& m = memory();
  const std::lock_guard<std::mutex> hold(m.mutex);
  const auto found = m.used.find(static_cast<char*>(data));
  if (found == m.used.end()) return;
  const Block block = found->second;
  m.used.erase(found);
  {
    const InContext in(block.device);
    const c10::Stream stream(c10::Stream::UNSAFE, c10::Device(kType, block.device), block.stream);
    (void)driver().set_bytes(reinterpret_cast<cu::DevicePtr>(data), kGone, block.bytes, handle(stream));
  }
  m.free[{block.device, block.stream, block.bytes}].push_back(static_cast<char*>(data));
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    const c10::DeviceIndex device = current_device();
    const c10::Device place(kType, device);
    if (n == 0) return {nullptr, nullptr, &give_back, place};
    const InContext in(device);
    const std::lock_guard<std::mutex> hold(memory().mutex);
    const Block block{(n + kPart - 1) / kPart * kPart, device, current_stream(device).id()};
    char* const data = take(block);
    memory().used[data] = block;
    return {data, data, &give_back, place};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const c10::DeviceIndex device = current_device();
    const InContext in(device);
    check(driver().copy(reinterpret_cast<cu::DevicePtr>(to), reinterpret_cast<cu::DevicePtr>(const_cast<void*>(from)),
                        bytes, handle(current_stream(device))),
          "cuMemcpyAsync");
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Device getDeviceFromPtr(void* data) const override {
    const std::lock_guard<std::mutex> hold(memory().mutex);
    auto next = memory().used.upper_bound(static_cast<char*>(data));
    TORCH_CHECK(next != memory().used.begin(), "test device: not its memory");
    return {kType, std::prev(next)->second.device};
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DataPtr fresh = allocator().allocate(bytes);
    const size_t both = std::min(bytes, storage.nbytes());
    if (both > 0) allocator().copy_data(fresh.get(), storage.data(), both);
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

const bool registered = [] {
  c10::SetAllocator(kType, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

c10::Allocator& allocator() {
  static Allocator& one = *new Allocator;
  return one;
}

}  // namespace test_device
