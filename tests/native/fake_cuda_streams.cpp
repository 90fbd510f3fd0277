// Streams, events, and what is enqueued.
#include <unistd.h>

#include <cstring>
#include <utility>

#include "fake_gpu.h"

#ifdef __SANITIZE_THREAD__
extern "C" {  // of libtsan
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace ringcomm::cu {

namespace {
constexpr useconds_t kLookUs = 20;  // between looks at what a stream waits for
// A wait that finds a flag so far past its value was ended by the host, to drain the stream: by design nothing orders what the stream does from there on.
constexpr int32_t kNoCount = 1 << 24;

// While it lives ThreadSanitizer looks at none of this thread's loads and stores.
class Unseen {
 public:
#ifdef __SANITIZE_THREAD__
  explicit Unseen(bool on) : on_(on) {
    if (on_) AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    if (on_) AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }

 private:
  const bool on_;
#else
  explicit Unseen(bool) {}
#endif
};

bool look(const Work& work, const Stream& stream) {
  const Unseen unseen(stream.unordered);
  return work();
}
}  // namespace

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread.join();
}

void Stream::enqueue(Work work) {
  if (capturing) {
    captured.push_back(std::move(work));
    return;
  }
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  ++enqueued_;
  changed_.notify_all();
}

uint64_t Stream::enqueued() {
  const std::lock_guard lock(mutex_);
  return enqueued_;
}

bool Stream::has_done(uint64_t count) {
  const std::lock_guard lock(mutex_);
  return done_ >= count;
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !work_.empty(); });
    if (closing_) return;  // what a destroyed stream had left was noted
    const Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    bool done = look(work, *this);
    while (!done) {
      usleep(kLookUs);
      lock.lock();
      const bool closing = closing_;
      lock.unlock();
      if (closing) return;
      done = look(work, *this);
    }
    lock.lock();
    ++done_;
  }
}

}  // namespace ringcomm::cu

namespace ringcomm::test {

using gpu::state;

namespace {

// Null is the default stream of the thread's context.
cu::Stream* real(cu::Stream* stream) {
  const std::lock_guard lock(state().mutex);
  if (stream == nullptr) {
    cu::Stream*& own = state().default_streams[gpu::current()];
    return own ? own : own = new cu::Stream(gpu::current());
  }
  if (!state().streams.contains(stream) || stream->context != gpu::current()) return nullptr;
  return stream;
}

// Streams of the process that are captured in the mode that forbids things to all threads; and what each thread has said.
std::atomic<int> captures{0};
thread_local cu::CaptureMode beside = cu::kCaptureGlobal;

// As the driver has it, but that the capture goes on.
bool ends_a_capture() { return captures.load() > 0 && beside == cu::kCaptureGlobal; }

bool idle(cu::Stream& stream) { return stream.has_done(stream.enqueued()); }

#define STREAM(stream)                 \
  cu::Stream* const on = real(stream); \
  if (on == nullptr) return gpu::misused("not a stream of this context", cu::kInvalidHandle)

}  // namespace

FAKE_CUDA(cuStreamCreate, (cu::Stream * *stream, unsigned flags)) {
  ENTER("cuStreamCreate", context);
  if (flags != cu::kStreamNonBlocking) return gpu::misused("would be ordered with the default stream");
  const std::lock_guard lock(state().mutex);
  *stream = new cu::Stream(gpu::current());
  state().streams.insert(*stream);
  return cu::kSuccess;
}

FAKE_CUDA(cuStreamDestroy_v2, (cu::Stream * stream)) {
  ENTER("cuStreamDestroy_v2", context);
  STREAM(stream);
  if (!idle(*on)) gpu::misused("a stream with work to do");
  {
    const std::lock_guard lock(state().mutex);
    state().streams.erase(on);
  }
  delete on;
  return cu::kSuccess;
}

FAKE_CUDA(cuStreamQuery, (cu::Stream * stream)) {
  ENTER("cuStreamQuery", context);
  STREAM(stream);
  if (on->capturing) return cu::kCaptureUnsupported;
  if (ends_a_capture()) return gpu::misused("beside a capture", cu::kCaptureUnsupported);
  return idle(*on) ? cu::kSuccess : cu::kNotReady;
}

FAKE_CUDA(cuStreamIsCapturing, (cu::Stream * stream, cu::CaptureStatus* status)) {
  ENTER("cuStreamIsCapturing", context);
  STREAM(stream);
  *status = on->capturing ? cu::kCaptureActive : cu::kCaptureNone;
  return cu::kSuccess;
}

FAKE_CUDA(cuThreadExchangeStreamCaptureMode, (cu::CaptureMode * mode)) {
  ENTER("cuThreadExchangeStreamCaptureMode", init);
  *mode = std::exchange(beside, *mode);
  return cu::kSuccess;
}

FAKE_CUDA(cuEventCreate, (cu::Event * *event, unsigned flags)) {
  ENTER("cuEventCreate", context);
  if (flags != cu::kEventDisableTiming) return gpu::misused("an event that takes time");
  const std::lock_guard lock(state().mutex);
  *event = new cu::Event;
  state().events.insert(*event);
  return cu::kSuccess;
}

namespace {

// What the latest record stands for; false: no such event.
bool latest(cu::Event* event, std::shared_ptr<std::atomic<bool>>& out) {
  {
    const std::lock_guard lock(state().mutex);
    if (state().events.contains(event)) return out = event->recorded, true;
  }
  gpu::misused("not an event");
  return false;
}

}  // namespace

FAKE_CUDA(cuEventRecord, (cu::Event * event, cu::Stream* stream)) {
  ENTER("cuEventRecord", context);
  STREAM(stream);
  std::shared_ptr<std::atomic<bool>> before, mark = std::make_shared<std::atomic<bool>>(false);
  if (!latest(event, before)) return cu::kInvalidHandle;
  {
    const std::lock_guard lock(state().mutex);
    event->recorded = mark;
  }
  on->enqueue([mark] { return mark->store(true), true; });
  return cu::kSuccess;
}

FAKE_CUDA(cuStreamWaitEvent, (cu::Stream * stream, cu::Event* event, unsigned)) {
  ENTER("cuStreamWaitEvent", context);
  STREAM(stream);
  std::shared_ptr<std::atomic<bool>> mark;
  if (!latest(event, mark)) return cu::kInvalidHandle;
  if (mark) on->enqueue([mark] { return mark->load(); });
  return cu::kSuccess;
}

FAKE_CUDA(cuEventQuery, (cu::Event * event)) {
  ENTER("cuEventQuery", context);
  if (ends_a_capture()) return gpu::misused("beside a capture", cu::kCaptureUnsupported);
  std::shared_ptr<std::atomic<bool>> mark;
  if (!latest(event, mark)) return cu::kInvalidHandle;
  return !mark || mark->load() ? cu::kSuccess : cu::kNotReady;
}

FAKE_CUDA(cuEventDestroy_v2, (cu::Event * event)) {
  ENTER("cuEventDestroy_v2", context);
  std::shared_ptr<std::atomic<bool>> mark;
  if (!latest(event, mark)) return cu::kInvalidHandle;
  const std::lock_guard lock(state().mutex);
  state().events.erase(event);
  delete event;
  return cu::kSuccess;
}

FAKE_CUDA(cuMemcpyAsync, (cu::DevicePtr to, cu::DevicePtr from, size_t bytes, cu::Stream* stream)) {
  ENTER("cuMemcpyAsync", context);
  STREAM(stream);
  if (!gpu::reachable(to, bytes, "to") || !gpu::reachable(from, bytes, "from")) return cu::kInvalidValue;
  on->enqueue([=] {
    if (gpu::reachable(to, bytes, "to, when it ran") && gpu::reachable(from, bytes, "from, when it ran"))
      std::memmove(reinterpret_cast<char*>(to), reinterpret_cast<const char*>(from), bytes);
    return true;
  });
  return cu::kSuccess;
}

FAKE_CUDA(cuMemsetD8Async, (cu::DevicePtr to, unsigned char value, size_t bytes, cu::Stream* stream)) {
  ENTER("cuMemsetD8Async", context);
  STREAM(stream);
  if (!gpu::reachable(to, bytes, "to")) return cu::kInvalidValue;
  on->enqueue([=] {
    if (gpu::reachable(to, bytes, "to, when it ran")) std::memset(reinterpret_cast<char*>(to), value, bytes);
    return true;
  });
  return cu::kSuccess;
}

FAKE_CUDA(cuStreamWriteValue32_v2, (cu::Stream * stream, cu::DevicePtr address, uint32_t value, unsigned flags)) {
  ENTER("cuStreamWriteValue32_v2", context);
  STREAM(stream);
  if (address % 4 != 0 || flags != cu::kWriteDefault) return gpu::misused("not aligned, or other flags");
  if (!gpu::reachable(address, 4, "the flag")) return cu::kInvalidValue;
  on->enqueue([=] {
    if (gpu::reachable(address, 4, "the flag, when it was written"))
      __atomic_store_n(reinterpret_cast<uint32_t*>(address), value, __ATOMIC_RELEASE);
    return true;
  });
  return cu::kSuccess;
}

FAKE_CUDA(cuStreamWaitValue32_v2, (cu::Stream * stream, cu::DevicePtr address, uint32_t value, unsigned flags)) {
  ENTER("cuStreamWaitValue32_v2", context);
  STREAM(stream);
  if (address % 4 != 0 || flags != cu::kWaitGreaterEqual) return gpu::misused("not aligned, or other flags");
  if (!gpu::reachable(address, 4, "the flag")) return cu::kInvalidValue;
  on->enqueue([=] {
    if (!gpu::reachable(address, 4, "the flag, when it was awaited")) return true;
    const uint32_t now = __atomic_load_n(reinterpret_cast<const uint32_t*>(address), __ATOMIC_ACQUIRE);
    const auto beyond = static_cast<int32_t>(now - value);
    if (beyond > cu::kNoCount) on->unordered = true;
    return beyond >= 0;
  });
  return cu::kSuccess;
}

FAKE_CUDA(cuModuleLoadData, (cu::Module * *module, const void* image)) {
  ENTER("cuModuleLoadData", context);
  if (image == nullptr || std::memcmp(image, fake_cuda_image(), 4) != 0) return cu::kInvalidImage;
  const std::lock_guard lock(state().mutex);
  *module = new cu::Module{gpu::current()};
  state().modules.insert(*module);
  return cu::kSuccess;
}

FAKE_CUDA(cuModuleUnload, (cu::Module * module)) {
  ENTER("cuModuleUnload", context);
  const std::lock_guard lock(state().mutex);
  if (state().modules.erase(module) == 0) return cu::kInvalidHandle;
  delete module;
  return cu::kSuccess;
}

FAKE_CUDA(cuModuleGetFunction, (cu::Function * *function, cu::Module* module, const char* name)) {
  ENTER("cuModuleGetFunction", context);
  const std::lock_guard lock(state().mutex);
  if (!state().modules.contains(module)) return cu::kInvalidHandle;
  if (const auto found = state().kernels.find(name); found != state().kernels.end()) {
    *function = &found->second;
    return cu::kSuccess;
  }
  const auto real = gpu::real_kernels().find(name);
  if (real == gpu::real_kernels().end()) return cu::kNotFound;
  *function = &real->second;
  return cu::kSuccess;
}

FAKE_CUDA(cuLaunchKernel,
          (cu::Function * function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
           unsigned block_y, unsigned block_z, unsigned, cu::Stream* stream, void** parameters, void** extra)) {
  ENTER("cuLaunchKernel", context);
  STREAM(stream);
  if (grid_x == 0 || block_x == 0 || block_x > 1024 || grid_y * grid_z * block_y * block_z != 1 || extra != nullptr)
    return gpu::misused("a shape of a launch");
  const auto* const bytes = static_cast<const char*>(parameters[0]);
  on->enqueue([=, parameter = std::vector<char>(bytes, bytes + function->bytes)] {
    // As the device has it: aligned, and its own.
    alignas(64) char own[4096];
    std::memcpy(own, parameter.data(), parameter.size());
    function->call({grid_x, block_x, own});
    return true;
  });
  return cu::kSuccess;
}

void fake_cuda_capture(cu::Stream* stream, bool on, cu::CaptureMode mode) {
  if (on) stream->captured.clear();
  const bool before = stream->capturing.exchange(on);
  if (mode == cu::kCaptureGlobal) captures += static_cast<int>(on) - static_cast<int>(before);
}

void fake_cuda_replay(cu::Stream* stream) {
  for (const cu::Work& work : stream->captured) stream->enqueue(work);
}

}  // namespace ringcomm::test
