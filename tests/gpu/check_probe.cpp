// What the driver and the device are, and what the rest builds on: kernels load, streams wait for flags wherever these lie and go on when the host says so, processes share memory and flags.
#include <sys/mman.h>

#include "gpu_check.h"

namespace ringcomm::gpu_check {
namespace {

using namespace ringcomm::cuda;

constexpr size_t kPages = 4096;
constexpr int kRounds = 200;

void good(bool is, const Error& error, int line) {
  if (!is) test::fail(__FILE__, line, error.text);
}
#define GOOD(call) good(call, error, __LINE__)

uint32_t* word(char* at) { return reinterpret_cast<uint32_t*>(at); }

// Two streams of which one waits for the other's flag, all enqueued at once, in order so that no hardware queue can be in the way.
double memops_us(DeviceRuntime& runtime, char* flags, int64_t limit_ms) {
  Error error;
  const DeviceStream writer = device_stream(runtime, error), reader = device_stream(runtime, error);
  GOOD(writer && reader);
  const int64_t start = now_ns();
  for (uint32_t k = 1; k <= kRounds; ++k) {
    GOOD(runtime.write_flag(word(flags), k, *writer, error));
    GOOD(runtime.wait_flag(word(flags), k, *reader, error));
  }
  GOOD(runtime.drain(*reader, after_ms(limit_ms), error) && runtime.drain(*writer, after_ms(limit_ms), error));
  return static_cast<double>(now_ns() - start) / 1e3 / kRounds;
}

}  // namespace

void probe(const Options& options, Figures& figures) {
  Error error;
  const Driver& driver = options.machine.driver();
  const auto runtime = DriverRuntime::open(driver, 0, error);
  GOOD(runtime != nullptr);
  const DeviceFacts& facts = runtime->facts();
  figures.add("device", facts.name);
  figures.add("uuid", facts.uuid);
  figures.add("devices", driver.devices);
  figures.add("driver", facts.driver_version);
  figures.add("compute capability", facts.major + facts.minor / 10.0);
  figures.add("multiprocessors", facts.multiprocessors);
  figures.add("copy engines", facts.copy_engines);
  figures.add("exclusive", facts.one_process);
  const int64_t start = now_ns();
  GOOD(runtime->load_kernels(options.machine.image, kernel_names(), error));
  figures.add("ms to load the kernels", static_cast<double>(now_ns() - start) / 1e6);

  // Flags where either mode has them: device memory, pinned memory, registered pages.
  const DeviceMemory device = device_memory(*runtime, 4096, error);
  const PinnedMemory pinned = pinned_memory(*runtime, 4096, error);
  const test::SharedPages pages(kPages);
  const RegisteredMemory registered = registered_memory(*runtime, pages.at, kPages, error);
  GOOD(device && pinned && registered);
  figures.add("us a flag in device memory", memops_us(*runtime, *device, 10'000));
  figures.add("us a flag in pinned memory", memops_us(*runtime, pinned->device, 10'000));
  figures.add("us a flag in registered pages", memops_us(*runtime, registered->device, 10'000));

  const DeviceStream stream = device_stream(*runtime, error);
  GOOD(stream && runtime->wait_flag(word(registered->device + 64), 1, *stream, error));
  bool done = true;
  usleep(20'000);
  GOOD(runtime->done(*stream, done, error));
  if (done) test::fail(__FILE__, __LINE__, "a stream did not wait for a flag");
  const int64_t stored = now_ns();
  __atomic_store_n(word(pages.at + 64), 0x40000000u, __ATOMIC_RELEASE);
  GOOD(runtime->drain(*stream, after_ms(5'000), error));
  figures.add("ms until a host's store ends a wait", static_cast<double>(now_ns() - stored) / 1e6);
}

// Rank 0's memory is filled by rank 1 and the other way, each told by the other's stream through flags in device memory and in host pages.
void processes(const Options& options, Figures& figures) {
  const test::GroupSpec spec{DeviceMode::memop, 2};
  const size_t bytes = 1 << 20;
  test::SharedPages pages(kPages);
  test::in_processes(options.machine, spec, [&](test::GroupRank& rank) {
    Error error;
    DeviceRuntime& runtime = *rank.runtime;
    auto* const cards = reinterpret_cast<SharedMemory*>(pages.at);
    static_assert(2 * sizeof(SharedMemory) <= kPages / 2);
    const DeviceMemory own = device_memory(runtime, bytes + 4096, error);
    const PinnedMemory host = pinned_memory(runtime, bytes, error);
    const RegisteredMemory flags = registered_memory(runtime, pages.at, kPages, error);
    GOOD(own && host && flags && runtime.share(*own, bytes + 4096, cards[rank.rank], error));
    rank.meet();
    PeerMemory peer = peer_memory(runtime, cards[1 - rank.rank], error);
    GOOD(bool(peer));
    char* const own_page = flags->device + kPages / 2 + 64 * rank.rank;
    char* const peer_page = flags->device + kPages / 2 + 64 * (1 - rank.rank);
    for (uint32_t round = 1; round <= 20; ++round) {
      test::fill(host->host, bytes, static_cast<uint64_t>(rank.rank), round);
      GOOD(runtime.copy(peer->data + 4096, host->device, bytes, *rank.stream, error));
      char* const told = round % 2 ? peer->data : peer_page;
      char* const heard = round % 2 ? *own : own_page;
      GOOD(runtime.write_flag(word(told), round, *rank.stream, error));
      GOOD(runtime.wait_flag(word(heard), round, *rank.stream, error));
      GOOD(runtime.copy(host->device, *own + 4096, bytes, *rank.stream, error));
      GOOD(runtime.drain(*rank.stream, after_ms(10'000), error));
      if (!test::holds(host->host, bytes, static_cast<uint64_t>(1 - rank.rank), round))
        test::fail(__FILE__, __LINE__, "round " + std::to_string(round) + ": the other process's bytes are wrong");
      rank.meet();
    }
    peer.reset();
    rank.meet();
  });
  figures.add("rounds", 20);
}

}  // namespace ringcomm::gpu_check
