// DriverRuntime over the fake driver: what one process sees. cuda_processes_test.cpp has two, cuda_failure_test.cpp calls that fail.
#include <thread>

#include "check.h"
#include "cuda/driver_runtime.h"
#include "cuda_shared.h"
#include "fake_cuda.h"

using namespace ringcomm;
using namespace ringcomm::cuda;
using namespace ringcomm::test;

namespace {

using Runtime = std::unique_ptr<DriverRuntime>;

Runtime opened(int ordinal = 0) {
  Error error;
  Runtime runtime = DriverRuntime::open(fake_cuda(), ordinal, error);
  if (!runtime) fail(__FILE__, __LINE__, error.text);
  return runtime;
}

void facts() {
  section("facts of a device; one that is not there");
  fake_cuda_reset({.devices = 2, .compute_mode = cu::kComputeModeExclusiveProcess});
  const Runtime runtime = opened(1);
  CHECK_EQ(runtime->facts().uuid, std::string("GPU-fafafafa-fafa-fafa-fafa-fafafafafa01"));
  CHECK_EQ(runtime->facts().pci, std::string("0000:3c:00.0"));
  CHECK_EQ(runtime->facts().major * 10 + runtime->facts().minor, 90);
  CHECK(runtime->facts().one_process);
  Error error;
  CHECK(DriverRuntime::open(fake_cuda(), 2, error) == nullptr);
  CHECK_CONTAINS(std::string(error.text), "cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE (101)");
  CHECK_CONTAINS(std::string(error.text), "device 2 of 2");
}

void order_in_a_stream() {
  section("a stream does all in its order, on memory that was zeroes");
  const Runtime runtime = opened();
  Error error;
  constexpr size_t kCells = 8, kCell = 1000;
  const DeviceMemory memory = device_memory(*runtime, kCells * kCell, error);
  const PinnedMemory pinned = pinned_memory(*runtime, kCells * kCell, error);
  const DeviceStream stream = device_stream(*runtime, error);
  CHECK(memory && pinned && stream);
  CHECK(reinterpret_cast<uintptr_t>(*memory) % 256 == 0);
  for (size_t i = 0; i < kCells * kCell; ++i) CHECK(pinned->host[i] == 0);
  std::memset(pinned->host, 1, kCells * kCell);
  CHECK(runtime->copy(pinned->device, *memory, kCells * kCell, *stream, error));
  CHECK(runtime->drain(*stream, after_ms(30'000), error));
  for (size_t i = 0; i < kCells * kCell; ++i) CHECK(pinned->host[i] == 0);
  std::vector<int> holds_k(kCells, 0);  // which pattern; 0: zeroes
  for (size_t k = 1; k < kCells; ++k) fill(pinned->host + k * kCell, kCell, 1, k);
  Random random(1);
  for (int i = 0; i < 500; ++i) {
    const size_t to = random.below(kCells), from = random.below(kCells);
    if (random.one_in(5)) {
      CHECK(runtime->zero(*memory + to * kCell, kCell, *stream, error));
      holds_k[to] = 0;
    } else if (random.one_in(3) && from > 0) {
      CHECK(runtime->copy(*memory + to * kCell, pinned->device + from * kCell, kCell, *stream, error));
      holds_k[to] = static_cast<int>(from);
    } else {
      CHECK(runtime->copy(*memory + to * kCell, *memory + from * kCell, kCell, *stream, error));
      holds_k[to] = holds_k[from];
    }
  }
  const PinnedMemory back = pinned_memory(*runtime, kCells * kCell, error);
  CHECK(runtime->copy(back->device, *memory, kCells * kCell, *stream, error));
  CHECK(runtime->drain(*stream, after_ms(30'000), error));
  for (size_t k = 0; k < kCells; ++k) {
    const char* cell = back->host + k * kCell;
    CHECK(holds_k[k] ? holds(cell, kCell, 1, static_cast<uint64_t>(holds_k[k]))
                     : std::string(cell, kCell) == std::string(kCell, '\0'));
  }
}

void events_across_streams() {
  section("an event orders two streams, as of its record at the time of the wait");
  const Runtime runtime = opened();
  Error error;
  const DeviceMemory memory = device_memory(*runtime, 64, error);
  const PinnedMemory flags = pinned_memory(*runtime, 64, error);
  const DeviceStream first = device_stream(*runtime, error), second = device_stream(*runtime, error);
  const DeviceEvent event = device_event(*runtime, error);
  auto* const gate = reinterpret_cast<uint32_t*>(flags->host);
  auto* const gate_on_device = reinterpret_cast<uint32_t*>(flags->device);
  auto* const word = reinterpret_cast<uint32_t*>(*memory);
  bool done = false;
  CHECK(runtime->wait_event(*second, *event, error));  // never recorded: nothing to wait for
  CHECK(runtime->drain(*second, after_ms(30'000), error));

  CHECK(runtime->wait_flag(gate_on_device, 1, *first, error));
  CHECK(runtime->write_flag(word, 7, *first, error));
  CHECK(runtime->record(*event, *first, error));
  CHECK(runtime->wait_event(*second, *event, error));
  CHECK(runtime->copy(flags->device + 32, *memory, 4, *second, error));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(runtime->done(*event, done, error) && !done);
  CHECK(runtime->done(*second, done, error) && !done);
  Error late;
  CHECK(!runtime->drain(*second, now_ns(), late));
  CHECK(late.cause == Cause::timeout);
  __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
  CHECK(runtime->drain(*second, after_ms(30'000), error));
  CHECK(runtime->done(*event, done, error) && done);
  CHECK_EQ(reinterpret_cast<uint32_t*>(flags->host + 32)[0], 7u);
  CHECK(runtime->drain(*first, after_ms(30'000), error));
}

void flags_between_streams() {
  section("a flag written in one stream wakes another, by signed distance, with the data before it");
  const Runtime runtime = opened();
  Error error;
  const DeviceMemory memory = device_memory(*runtime, 4096, error);
  const PinnedMemory from = pinned_memory(*runtime, 1024, error), to = pinned_memory(*runtime, 1024, error);
  const DeviceStream writer = device_stream(*runtime, error), reader = device_stream(*runtime, error);
  auto* const head = reinterpret_cast<uint32_t*>(*memory);
  auto* const credit = head + 16;
  const uint32_t before = 0xfffffffe;  // so that it wraps
  CHECK(runtime->write_flag(head, before, *writer, error) && runtime->write_flag(credit, before, *writer, error));
  CHECK(runtime->drain(*writer, after_ms(30'000), error));
  for (uint32_t k = 1; k <= 5; ++k) {
    // One slot: the writer waits for the reader's credit of the message before.
    fill(from->host, 1024, 3, k);
    CHECK(runtime->wait_flag(credit, before + k - 1, *writer, error));
    CHECK(runtime->copy(*memory + 1024, from->device, 1024, *writer, error));
    CHECK(runtime->write_flag(head, before + k, *writer, error));
    CHECK(runtime->wait_flag(head, before + k, *reader, error));
    CHECK(runtime->copy(to->device, *memory + 1024, 1024, *reader, error));
    CHECK(runtime->write_flag(credit, before + k, *reader, error));
    CHECK(runtime->drain(*reader, after_ms(30'000), error));
    CHECK(holds(to->host, 1024, 3, k));
  }
  CHECK(runtime->drain(*writer, after_ms(30'000), error));
}

void abort_of_a_waiting_stream() {
  section("the host ends a wait by a store into its own flags, in memory that processes share");
  const Runtime runtime = opened();
  Error error;
  const SharedPages pages(4096);
  const RegisteredMemory flags = registered_memory(*runtime, pages.at, 4096, error);
  if (!flags) fail(__FILE__, __LINE__, error.text);
  const DeviceStream stream = device_stream(*runtime, error);
  for (uint32_t k = 0; k < 8; ++k)
    CHECK(runtime->wait_flag(reinterpret_cast<uint32_t*>(flags->device) + 16 * k, 1 + k, *stream, error));
  Error late;
  CHECK(!runtime->drain(*stream, after_ms(20), late) && late.cause == Cause::timeout);
  for (uint32_t k = 0; k < 8; ++k)
    __atomic_store_n(reinterpret_cast<uint32_t*>(pages.at) + 16 * k, 0x40000000u, __ATOMIC_RELEASE);
  CHECK(runtime->drain(*stream, after_ms(30'000), error));
  RegisteredMemory again = registered_memory(*runtime, pages.at, 4096, late);
  CHECK(!again);
  CHECK_CONTAINS(std::string(late.text), "cuMemHostRegister failed with");
  CHECK_CONTAINS(std::string(late.text), "(712)");
}

struct Add {
  uint32_t* to;
  uint32_t value;
};

void kernels() {
  section("kernels by name; the parameter is read at the launch");
  fake_cuda_reset();
  fake_cuda_kernel("add", sizeof(Add), [](const FakeLaunch& launch) {
    const auto& add = *static_cast<const Add*>(launch.parameter);
    *add.to = *add.to * 10 + add.value + launch.blocks + launch.threads;
  });
  const Runtime runtime = opened();
  Error error;
  const char no_module[8] = {};
  CHECK(!runtime->load_kernels(no_module, {"add"}, error));
  CHECK_CONTAINS(std::string(error.text), "cuModuleLoadData failed with");
  CHECK_CONTAINS(std::string(error.text), "compute capability 9.0");
  CHECK(!runtime->load_kernels(fake_cuda_image(), {"add", "subtract"}, error));
  CHECK_CONTAINS(std::string(error.text), "cuModuleGetFunction failed with CUDA_ERROR_NOT_FOUND (500)");
  CHECK_CONTAINS(std::string(error.text), "subtract");
  CHECK_EQ(fake_cuda_live().modules, 0);
  error = {};
  CHECK(runtime->load_kernels(fake_cuda_image(), {"add"}, error));
  const DeviceStream stream = device_stream(*runtime, error);
  const PinnedMemory memory = pinned_memory(*runtime, 64, error);
  Add add{reinterpret_cast<uint32_t*>(memory->device), 0};
  for (add.value = 1; add.value <= 3; ++add.value) CHECK(runtime->launch("add", 2, 32, &add, *stream, error));
  CHECK(!runtime->launch("subtract", 1, 1, &add, *stream, error) && error.cause == Cause::internal);
  CHECK(!runtime->launch("add", 1, 2048, &add, *stream, error));
  CHECK_CONTAINS(std::string(error.text), "cuLaunchKernel failed with");
  CHECK(runtime->drain(*stream, after_ms(30'000), error));
  CHECK_EQ(*reinterpret_cast<uint32_t*>(memory->host), 35u * 100 + 36 * 10 + 37);
  CHECK_EQ(fake_cuda_misuse(), std::string("cuLaunchKernel: a shape of a launch\n"));
  fake_cuda_forget_misuse();
}

void capture() {
  section("a capture is seen; what it kept is done at each replay");
  const Runtime runtime = opened();
  Error error;
  const DeviceStream stream = device_stream(*runtime, error);
  const PinnedMemory memory = pinned_memory(*runtime, 64, error);
  auto* const words = reinterpret_cast<uint32_t*>(memory->device);
  bool is = true;
  CHECK(runtime->capturing(*stream, is, error) && !is);
  fake_cuda_capture(*stream, true, cu::kCaptureGlobal);
  CHECK(runtime->capturing(*stream, is, error) && is);
  CHECK(runtime->write_flag(words, 5, *stream, error));
  CHECK(!runtime->done(*stream, is, error));  // a capturing stream may not be asked
  CHECK_CONTAINS(std::string(error.text), "(900)");
  const DeviceStream other = device_stream(*runtime, error);
  CHECK(!runtime->done(*other, is, error));  // and beside it only by threads that have said so
  CHECK_EQ(fake_cuda_misuse(), std::string("cuStreamQuery: beside a capture\n"));
  fake_cuda_forget_misuse();
  std::thread([&] { CHECK(runtime->look_beside_captures(error) && runtime->done(*other, is, error) && is); }).join();
  fake_cuda_capture(*stream, false, cu::kCaptureGlobal);
  CHECK(runtime->done(*other, is, error) && is);
  CHECK(runtime->drain(*stream, after_ms(30'000), error));
  CHECK_EQ(*reinterpret_cast<uint32_t*>(memory->host), 0u);
  for (int replay = 0; replay < 2; ++replay) {
    std::memset(memory->host, 0, 64);
    fake_cuda_replay(*stream);
    CHECK(runtime->drain(*stream, after_ms(30'000), error));
    CHECK_EQ(*reinterpret_cast<uint32_t*>(memory->host), 5u);
  }
}

void memory_of_the_own_process() {
  section("an own piece is looked up and not opened; one of another device is refused");
  fake_cuda_reset({.devices = 2});
  const Runtime runtime = opened(0), other = opened(1);
  Error error;
  const DeviceMemory memory = device_memory(*runtime, 4096, error);
  SharedMemory shared;
  CHECK(runtime->share(*memory + 100, 50, shared, error));
  CHECK_EQ(shared.offset, 100u);
  const PeerMemory same = peer_memory(*runtime, shared, error);
  CHECK(same && same->data == *memory + 100 && same->opened == nullptr);
  CHECK_EQ(fake_cuda_calls("cuIpcOpenMemHandle_v2"), 0);
  CHECK(!peer_memory(*other, shared, error));
  CHECK_CONTAINS(std::string(error.text), "two devices of one process");
  CHECK(!runtime->share(*memory + 4000, 100, shared, error));
  CHECK_CONTAINS(std::string(error.text), "reach past their allocation");
  char on_host[8];
  CHECK(!runtime->share(on_host, 8, shared, error));
  CHECK_CONTAINS(std::string(error.text), "cuMemGetAddressRange failed with");
}

void contexts() {
  section("a thread keeps the context it had, or none");
  fake_cuda_reset({.devices = 2});
  const cu::Table& t = fake_cuda().table;
  cu::Context *torchs = nullptr, *now = nullptr;
  CHECK_EQ(t.context_retain(&torchs, 1), cu::kSuccess);
  {
    const Runtime runtime = opened(0);
    Error error;
    for (cu::Context* had : {torchs, static_cast<cu::Context*>(nullptr)}) {
      std::thread([&, had] {
        CHECK_EQ(t.context_set_current(had), cu::kSuccess);
        const DeviceMemory memory = device_memory(*runtime, 64, error);
        const DeviceStream stream = device_stream(*runtime, error);
        CHECK(memory && stream && runtime->zero(*memory, 64, *stream, error));
        CHECK(runtime->drain(*stream, after_ms(30'000), error));
        CHECK_EQ(t.context_get_current(&now), cu::kSuccess);
        CHECK(now == had);
      }).join();
    }
    // torch's null stream is the default stream of the device, not of the thread's context.
    const DeviceMemory memory = device_memory(*runtime, 64, error);
    CHECK(runtime->zero(*memory, 64, nullptr, error) && runtime->drain(nullptr, after_ms(30'000), error));
  }
  CHECK_EQ(t.context_release(1), cu::kSuccess);
}

}  // namespace

int main() {
  start("cuda_runtime_test", 240);
  for (void (*const test)() : {facts, order_in_a_stream, events_across_streams, flags_between_streams,
                               abort_of_a_waiting_stream, kernels, capture, memory_of_the_own_process, contexts}) {
    test();
    CHECK_EQ(fake_cuda_misuse(), std::string());
    CHECK(fake_cuda_live().none());
  }
  return 0;
}
