// DriverRuntime over the fake driver, in two processes: memory of one in the other, and flags that wake its streams. Each test forks its two processes while this one has
// no driver, because none works in a forked child.
#include "check.h"
#include "cuda/driver_runtime.h"
#include "cuda_shared.h"
#include "fake_cuda.h"
#include "process_pair.h"

using namespace ringcomm;
using namespace ringcomm::cuda;
using namespace ringcomm::test;

namespace {

using Side = void (*)(Line&, char* pages);
constexpr size_t kPages = 4096;  // that both processes have

void two_processes(Side owner, Side peer) {
  const SharedPages pages(kPages);
  test::two_processes(60, [&](int which, Line& line) { (which == 0 ? owner : peer)(line, pages.at); });
}

std::unique_ptr<DriverRuntime> opened(const FakeMachine& machine = {}) {
  fake_cuda_reset(machine);
  Error error;
  auto runtime = DriverRuntime::open(fake_cuda(), 0, error);
  if (!runtime) fail(__FILE__, __LINE__, error.text);
  return runtime;
}

void all_is_well() {
  CHECK(fake_cuda_live().none());
  CHECK_EQ(fake_cuda_misuse(), std::string());
}

// Fills device memory, from pinned memory.
void put(DeviceRuntime& runtime, char* to, size_t bytes, uint64_t k) {
  Error error;
  const PinnedMemory from = pinned_memory(runtime, bytes, error);
  const DeviceStream stream = device_stream(runtime, error);
  fill(from->host, bytes, 9, k);
  CHECK(runtime.copy(to, from->device, bytes, *stream, error) && runtime.drain(*stream, after_ms(30'000), error));
}
bool has(DeviceRuntime& runtime, const char* from, size_t bytes, uint64_t k) {
  Error error;
  const PinnedMemory to = pinned_memory(runtime, bytes, error);
  const DeviceStream stream = device_stream(runtime, error);
  CHECK(runtime.copy(to->device, from, bytes, *stream, error) && runtime.drain(*stream, after_ms(30'000), error));
  return holds(to->host, bytes, 9, k);
}

void memory_of_another_process() {
  section(
      "a piece of another process's memory is read and written; opening twice is counted; a failing call leaves "
      "nothing");
  two_processes(
      [](Line& line, char*) {
        {
          const auto runtime = opened();
          Error error;
          const DeviceMemory memory = device_memory(*runtime, 10'000, error);
          put(*runtime, *memory + 1000, 3000, 1);
          SharedMemory shared;
          CHECK(runtime->share(*memory + 1000, 3000, shared, error));
          line.say(shared);
          line.meet();  // the peer has written
          CHECK(has(*runtime, *memory + 1000, 3000, 2));
          line.meet();  // the peer has closed
        }
        all_is_well();
      },
      [](Line& line, char*) {
        {
          const auto runtime = opened();
          Error error;
          const auto shared = line.hear<SharedMemory>();
          PeerMemory memory = peer_memory(*runtime, shared, error);
          const PeerMemory again = peer_memory(*runtime, shared, error);
          CHECK(memory && again && memory->data == again->data);
          CHECK(has(*runtime, memory->data, 3000, 1));
          CHECK_EQ(fake_cuda_live().imported, 2);
          memory.reset();
          put(*runtime, again->data, 3000, 2);
          line.meet();
          fake_cuda_fail("cuIpcOpenMemHandle_v2", 1, cu::kMapFailed);
          CHECK(!peer_memory(*runtime, shared, error));
          CHECK_CONTAINS(std::string(error.text), "cuIpcOpenMemHandle failed with");
          CHECK_CONTAINS(std::string(error.text), "(205)");
          CHECK_EQ(fake_cuda_live().imported, 1);
        }
        line.meet();
        all_is_well();
      });
}

// A FIFO of one slot in the owner's memory: payload, head and credit.
constexpr size_t kHead = 0, kCredit = 128, kSlot = 1024, kBytes = 3000;
constexpr uint32_t kMessages = 20;

uint32_t* flag(char* at) { return reinterpret_cast<uint32_t*>(at); }

void flags_in_device_memory() {
  section("a flag written by a stream of one process wakes a stream of another, with the data before it");
  two_processes(
      [](Line& line, char*) {
        {
          const auto runtime = opened();
          Error error;
          const DeviceMemory memory = device_memory(*runtime, kSlot + kBytes, error);
          const PinnedMemory got = pinned_memory(*runtime, kMessages * kBytes, error);
          const DeviceStream stream = device_stream(*runtime, error);
          SharedMemory shared;
          CHECK(runtime->share(*memory, kSlot + kBytes, shared, error));
          line.say(shared);
          for (uint32_t k = 0; k < kMessages; ++k) {
            CHECK(runtime->wait_flag(flag(*memory + kHead), k + 1, *stream, error));
            CHECK(runtime->copy(got->device + k * kBytes, *memory + kSlot, kBytes, *stream, error));
            CHECK(runtime->write_flag(flag(*memory + kCredit), k + 1, *stream, error));
          }
          CHECK(runtime->drain(*stream, after_ms(30'000), error));
          for (uint32_t k = 0; k < kMessages; ++k) CHECK(holds(got->host + k * kBytes, kBytes, 4, k));
          line.meet();
        }
        all_is_well();
      },
      [](Line& line, char*) {
        {
          const auto runtime = opened();
          Error error;
          const PinnedMemory from = pinned_memory(*runtime, kMessages * kBytes, error);
          for (uint32_t k = 0; k < kMessages; ++k) fill(from->host + k * kBytes, kBytes, 4, k);
          const PeerMemory memory = peer_memory(*runtime, line.hear<SharedMemory>(), error);
          const DeviceStream stream = device_stream(*runtime, error);
          CHECK(memory && stream);
          for (uint32_t k = 0; k < kMessages; ++k) {
            CHECK(runtime->wait_flag(flag(memory->data + kCredit), k, *stream, error));
            CHECK(runtime->copy(memory->data + kSlot, from->device + k * kBytes, kBytes, *stream, error));
            CHECK(runtime->write_flag(flag(memory->data + kHead), k + 1, *stream, error));
          }
          CHECK(runtime->drain(*stream, after_ms(30'000), error));
        }
        line.meet();
        all_is_well();
      });
}

void flags_in_host_memory() {
  section("flags in pages that both processes have registered; the host of one ends the other's wait for a dead third");
  const auto side = [](Line& line, char* pages) {
    {
      const auto runtime = opened();
      Error error;
      const RegisteredMemory flags = registered_memory(*runtime, pages, kPages, error);
      const DeviceStream stream = device_stream(*runtime, error);
      line.say(static_cast<int>(getpid()));
      const bool first = line.hear<int>() > getpid();  // one of them is
      uint32_t* const own = flag(flags->device + (first ? 0 : 64));
      uint32_t* const other = flag(flags->device + (first ? 64 : 0));
      for (uint32_t k = 1; k <= 50; ++k) {
        CHECK(runtime->write_flag(other, k, *stream, error));
        CHECK(runtime->wait_flag(own, k, *stream, error));
      }
      CHECK(runtime->drain(*stream, after_ms(30'000), error));
      line.meet();
      CHECK(runtime->wait_flag(own, 1000, *stream, error));  // nobody's stream will write it
      line.meet();
      __atomic_store_n(flag(pages + (first ? 64 : 0)), 0x40000000u, __ATOMIC_RELEASE);
      CHECK(runtime->drain(*stream, after_ms(30'000), error));
    }
    line.meet();
    all_is_well();
  };
  two_processes(side, side);
}

void freed_too_early() {
  section("memory that a living peer has open is not freed; that of a dead one is");
  two_processes(
      [](Line& line, char*) {
        {
          const auto runtime = opened();
          Error error;
          DeviceMemory first = device_memory(*runtime, 100, error);
          const DeviceMemory second = device_memory(*runtime, 100, error);
          char* const early = *first;
          SharedMemory shared[2];
          CHECK(runtime->share(*first, 100, shared[0], error) && runtime->share(*second, 100, shared[1], error));
          line.say(shared[0]), line.say(shared[1]);
          line.meet();
          first.reset();
          CHECK_CONTAINS(fake_cuda_misuse(), "still has it open");
          CHECK_EQ(fake_cuda_live().memory, 2);
          fake_cuda_forget_misuse();
          const int peer = line.hear<int>();
          line.meet();  // the peer closes the first and ends with the second open
          await("the end of the peer", [&] { return fake_cuda_is_dead(peer); });
          runtime->free(early);
        }
        all_is_well();
      },
      [](Line& line, char*) {
        const auto runtime = opened();
        Error error;
        PeerMemory first = peer_memory(*runtime, line.hear<SharedMemory>(), error);
        const PeerMemory second = peer_memory(*runtime, line.hear<SharedMemory>(), error);
        CHECK(first && second);
        line.meet();
        line.say(static_cast<int>(getpid()));
        line.meet();  // the owner has tried
        first.reset();
        _exit(0);
      });
}

void who_cannot_reach() {
  section("a device that cannot reach the other, one that it cannot see, an owner that is gone");
  two_processes(
      [](Line& line, char*) {
        {
          const auto runtime = opened({.devices = 1, .first = 1});
          Error error;
          const DeviceMemory memory = device_memory(*runtime, 100, error);
          SharedMemory shared;
          CHECK(runtime->share(*memory, 100, shared, error));
          line.say(shared);
          line.meet();
        }
        all_is_well();
        line.meet();
      },
      [](Line& line, char*) {
        const auto shared = line.hear<SharedMemory>();
        Error error;
        {
          const auto runtime = opened({.devices = 2, .peer_access = false});
          CHECK(!peer_memory(*runtime, shared, error));
          CHECK_CONTAINS(std::string(error.text),
                         "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00 cannot reach the memory of ");
          CHECK_EQ(fake_cuda_calls("cuIpcOpenMemHandle_v2"), 0);
        }
        {
          const auto runtime = opened({.devices = 2});
          CHECK(peer_memory(*runtime, shared, error));
        }
        const auto runtime = opened({.devices = 1, .peer_access = false});
        CHECK(peer_memory(*runtime, shared, error));  // not visible: the driver is asked by opening
        line.meet();
        line.meet();
        CHECK(!peer_memory(*runtime, shared, error));
        CHECK_CONTAINS(std::string(error.text), "cuIpcOpenMemHandle failed with CUDA_ERROR_INVALID_HANDLE (400)");
      });
}

void forked_children() {
  section("a child forked after the driver was started gets an error");
  const auto runtime = opened();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    Error error;
    CHECK(!device_memory(*runtime, 100, error));
    CHECK_CONTAINS(std::string(error.text), "failed with CUDA_ERROR_NOT_INITIALIZED (3)");
    _exit(0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

}  // namespace

int main() {
  start("cuda_processes_test", 120);
  memory_of_another_process();
  flags_in_device_memory();
  flags_in_host_memory();
  freed_too_early();
  who_cannot_reach();
  forked_children();
  all_is_well();
  return 0;
}
