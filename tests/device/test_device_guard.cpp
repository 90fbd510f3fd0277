#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <mutex>

#include "test_device.h"

namespace test_device {
namespace {

constexpr int kPool = 4;  // streams of a device that are handed out in turn
constexpr useconds_t kLookUs = 50;

struct Streams {
  std::mutex mutex;
  std::deque<cu::Stream*> all{nullptr};  // by number; 0 is the default stream
  std::array<c10::StreamId, kPool> pool{};
  size_t next = 0;
};
constexpr int kMostDevices = 8;
Streams& streams(c10::DeviceIndex device) {
  static auto& all = *new std::array<Streams, kMostDevices>;
  return all.at(static_cast<size_t>(device));
}

thread_local c10::DeviceIndex here = 0;
thread_local std::array<c10::StreamId, kMostDevices> current{};

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

c10::StreamId make_stream(c10::DeviceIndex device) {
  const InContext in(device);
  cu::Stream* made;
  check(driver().stream_create(&made, cu::kStreamNonBlocking), "cuStreamCreate");
  Streams& s = streams(device);
  s.all.push_back(made);
  return static_cast<c10::StreamId>(s.all.size()) - 1;
}

c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : here; }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(here, index_of(device))};
  }
  c10::Device getDevice() const override { return {kType, here}; }
  void setDevice(c10::Device device) const override { here = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { here = index_of(device); }
  c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    return driver().device_count(&count) == cu::kSuccess ? static_cast<c10::DeviceIndex>(count) : 0;
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    Streams& s = streams(index_of(device));
    const std::lock_guard<std::mutex> hold(s.mutex);
    c10::StreamId& id = s.pool[s.next++ % kPool];
    if (id == 0) id = make_stream(index_of(device));
    return stream_of(index_of(device), id);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const std::lock_guard<std::mutex> hold(streams(index_of(device)).mutex);
    return stream_of(index_of(device), make_stream(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto device = static_cast<size_t>(stream.device_index());
    return stream_of(stream.device_index(), std::exchange(current.at(device), stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    const InContext in(stream.device_index());
    const cu::Result result = driver().stream_query(handle(stream));
    if (result != cu::kNotReady) check(result, "cuStreamQuery");
    return result == cu::kSuccess;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    while (!queryStream(stream)) usleep(kLookUs);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    const InContext in(stream.device_index());
    auto* made = static_cast<cu::Event*>(*event);
    if (made == nullptr) check(driver().event_create(&made, cu::kEventDisableTiming), "cuEventCreate");
    *event = made;
    check(driver().event_record(made, handle(stream)), "cuEventRecord");
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const InContext in(stream.device_index());
    check(driver().stream_wait_event(handle(stream), static_cast<cu::Event*>(event), 0), "cuStreamWaitEvent");
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const InContext in(here);
    const cu::Result result = driver().event_query(static_cast<cu::Event*>(event));
    if (result != cu::kNotReady) check(result, "cuEventQuery");
    return result == cu::kSuccess;
  }
  void synchronizeEvent(void* event) const override {
    while (!queryEvent(event)) usleep(kLookUs);
  }
  void destroyEvent(void* event, const c10::DeviceIndex device) const noexcept override {
    if (event == nullptr) return;
    const InContext in(device < 0 ? here : device);
    (void)driver().event_destroy(static_cast<cu::Event*>(event));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const size_t count = streams(device).all.size();
    for (size_t id = 0; id < count; ++id) synchronizeStream(stream_of(device, static_cast<c10::StreamId>(id)));
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

cu::Context* context_of(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::array<cu::Context*, kMostDevices> all{};
  const std::lock_guard<std::mutex> hold(mutex);
  cu::Context*& context = all.at(static_cast<size_t>(device));
  if (context == nullptr) check(driver().context_retain(&context, device), "cuDevicePrimaryCtxRetain");
  return context;
}

}  // namespace

void check(cu::Result result, const char* call) {
  TORCH_CHECK(result == cu::kSuccess, "test device: ", call, " gave ", static_cast<int>(result), "; ",
              ringcomm::test::fake_cuda_misuse());
}

InContext::InContext(c10::DeviceIndex device) {
  cu::Context* const context = context_of(device);
  check(driver().context_get_current(&before_), "cuCtxGetCurrent");
  check(driver().context_set_current(context), "cuCtxSetCurrent");
}
InContext::~InContext() { (void)driver().context_set_current(before_); }

c10::DeviceIndex current_device() { return here; }
c10::Stream current_stream(c10::DeviceIndex device) {
  return stream_of(device, current.at(static_cast<size_t>(device)));
}

cu::Stream* handle(const c10::Stream& stream) {
  Streams& s = streams(stream.device_index());
  const std::lock_guard<std::mutex> hold(s.mutex);
  return s.all.at(static_cast<size_t>(stream.id()));
}

void synchronize(const c10::Stream& stream) { Guard().synchronizeStream(stream); }

}  // namespace test_device
