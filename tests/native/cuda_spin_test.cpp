// The driver's side of a call that spins in its kernel, over a fake driver: ranks are processes with one segment each, shared by handle; launches by name on a stream, events
// between streams, values written and awaited by streams, abort of a stream whose peer does not come. The sequence is the test's own; what ships it comes later.
#define RINGCOMM_TEST_FAMILIES(X) X(float32, PlainFormat<float>)
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "kernel_plans.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr int kRanks = 3;
constexpr unsigned kBlocks = 2, kThreads = 2;

void run_float32(const void* argument, unsigned blocks, unsigned threads) {
  Launch l;
  l.family = cuda::Family::float32, l.blocks = blocks;
  std::memcpy(&l.call, argument, sizeof l.call);
  test::Stream stream({blocks, threads});
  stream.start({l});
  stream.join();
}

// What the processes share besides device memory: stands for the ranks' cards.
struct Cards {
  cu::IpcHandle segment[kRanks], flags[kRanks];
  uint32_t arrived;
};

void meet(Cards& cards) {
  static uint32_t expected = 0;
  expected += kRanks;
  __atomic_fetch_add(&cards.arrived, 1u, __ATOMIC_ACQ_REL);
  await("the other processes", [&] { return __atomic_load_n(&cards.arrived, __ATOMIC_ACQUIRE) >= expected; });
}

#define GOOD(call) CHECK_EQ(call, cu::kSuccess)

// Own memory and the peers', as this process has them mapped.
class Shared {
 public:
  Shared(const cuda::Driver& d, int rank, size_t bytes, cu::Stream* stream, cu::IpcHandle (&handles)[kRanks],
         Cards& cards)
      : d_(d), rank_(rank) {
    all.resize(kRanks);
    GOOD(d.alloc(&all[rank], bytes));
    GOOD(d.fill(all[rank], 0, bytes, stream));
    GOOD(d.stream_wait(stream));
    GOOD(d.ipc_export(&handles[rank], all[rank]));
    meet(cards);
    for (int r = 0; r < kRanks; ++r)
      if (r != rank) GOOD(d.ipc_open(&all[r], handles[r], cu::kIpcLazyPeerAccess));
  }
  // Peers close what they opened before its owner frees it.
  void close(Cards& cards) {
    for (int r = 0; r < kRanks; ++r)
      if (r != rank_) GOOD(d_.ipc_close(all[r]));
    meet(cards);
    GOOD(d_.free(all[rank_]));
  }
  std::vector<char*> pointers() const {
    std::vector<char*> p;
    for (cu::Pointer a : all) p.push_back(reinterpret_cast<char*>(a));
    return p;
  }
  std::vector<cu::Pointer> all;

 private:
  const cuda::Driver& d_;
  const int rank_;
};

// Launches the job's kernel on a stream.
void launch(const cuda::Driver& d, cu::Function* kernel, Launch l, cu::Stream* stream) {
  void* parameters[] = {&l.call};
  GOOD(d.launch(kernel, l.blocks, 1, 1, kThreads, 1, 1, 0, stream, parameters, nullptr));
}

void rank_body(int rank, Cards& cards) {
  fake_cuda_kernel(cuda::kernel_name(cuda::Family::float32), sizeof(cuda::KernelCall), run_float32);
  const cuda::Driver d = fake_cuda();
  cu::Pointer none = 0;
  CHECK(d.alloc(&none, 64) != cu::kSuccess);  // no context is current
  {
    const cuda::Current current(d, 0);
    CHECK_EQ(current.error(), "");
    cu::Stream *stream = nullptr, *side = nullptr;
    cu::Event* event = nullptr;
    GOOD(d.stream_create(&stream, cu::kStreamNonBlocking));
    GOOD(d.stream_create(&side, cu::kStreamNonBlocking));
    GOOD(d.event_create(&event, cu::kEventDisableTiming));
    const cuda::DeviceLayout layout({kRanks, kBlocks, 4, 4096, 2048});
    Shared segments(d, rank, layout.bytes(), stream, cards.segment, cards),
        flags(d, rank, 4096, stream, cards.flags, cards);
    void* abort = nullptr;
    GOOD(d.host_alloc(&abort, sizeof(uint64_t), cu::kHostMapped | cu::kHostPortable));
    std::memset(abort, 0, sizeof(uint64_t));
    cu::Module* module = nullptr;
    cu::Function* kernel = nullptr;
    GOOD(d.module_load(&module, kFakeImage));
    CHECK(d.module_function(&kernel, module, "no_such_kernel") != cu::kSuccess);
    GOOD(d.module_function(&kernel, module, cuda::kernel_name(cuda::Family::float32)));

    const Plan tables = plan(two_shot, kRanks);
    Loaded loaded(tables[static_cast<size_t>(rank)], layout, segments.pointers());
    std::vector<cuda::Failure> failures(kBlocks);
    const auto prepared = [&](Job& job) {
      Launch l = job.launch(loaded, rank);
      l.call.abort = static_cast<const uint64_t*>(abort), l.call.failures = failures.data();
      return l;
    };
    // Calls on one stream that wait for what another stream does first, none of them waited for in between.
    std::vector<std::unique_ptr<Job>> jobs;
    for (uint32_t k = 0; k < 6; ++k) {
      Task t;
      t.size = 1 + 397 * k, t.blocks = kBlocks, t.low_latency = k % 2 == 1, t.tag = k + 1;
      jobs.push_back(std::make_unique<Job>(tables, t));
      GOOD(d.fill(flags.all[rank] + 1024, static_cast<unsigned char>(k), 64, side));
      GOOD(d.event_record(event, side));
      GOOD(d.stream_wait_event(stream, event, 0));
      launch(d, kernel, prepared(*jobs.back()), stream);
    }
    GOOD(d.event_record(event, stream));
    await("an event", [&] { return d.event_query(event) == cu::kSuccess; });
    for (const auto& job : jobs) job->check(rank);

    // A barrier of streams, no kernel: each tells its neighbour, whose stream goes on when it has heard.
    for (uint32_t round = 1; round <= 5; ++round) {
      GOOD(d.stream_write(stream, flags.all[(rank + 1) % kRanks], round, cu::kWriteDefault));
      GOOD(d.stream_wait_value(stream, flags.all[rank], round, cu::kWaitGreaterOrEqual));
    }
    GOOD(d.stream_wait(stream));

    // Rank 2 stays away: the others' streams spin until somebody says that it is over.
    Task last;
    last.size = 500, last.blocks = kBlocks, last.tag = 99;
    Job job(tables, last);
    if (rank != 2) {
      launch(d, kernel, prepared(job), stream);
      usleep(20'000);
      CHECK_EQ(d.stream_query(stream), cu::kNotReady);
      __atomic_store_n(static_cast<uint64_t*>(abort), 1, __ATOMIC_RELEASE);
      GOOD(d.stream_wait(stream));
      for (const cuda::Failure& f : failures)
        CHECK_EQ(f.word & 0x7f, static_cast<uint64_t>(cuda::FailureCause::aborted));
    }
    meet(cards);
    segments.close(cards), flags.close(cards);
    GOOD(d.host_free(abort));
    GOOD(d.event_destroy(event));
    GOOD(d.stream_destroy(side));
    GOOD(d.stream_destroy(stream));
    GOOD(d.module_unload(module));
  }
  CHECK_EQ(fake_cuda_left(), 0);
}

}  // namespace

int main() {
  start("cuda_spin_test", 240);
  std::fflush(nullptr);  // or every child says it again
  void* const page = mmap(nullptr, sizeof(Cards), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  std::vector<pid_t> children;
  for (int r = 0; r < kRanks; ++r) {
    children.push_back(fork());
    CHECK(children.back() >= 0);
    if (children.back() > 0) continue;
    alarm(240);
    rank_body(r, *static_cast<Cards*>(page));
    std::fflush(nullptr);
    _exit(0);
  }
  for (pid_t child : children) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
  }
  return 0;
}
