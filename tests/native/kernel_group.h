// Ranks whose kernels run on threads of this process: every thread of every block is one. What a stream is on a device is here a barrier of the rank's threads between
// two launches.
#pragma once

#include <pthread.h>

#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "cuda/emulated_context.h"
#include "cuda/families.h"
#include "cuda/kernels.h"
#include "cuda/layout.h"

namespace ringcomm::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// A test that needs only some kernels compiles only these.
#ifndef RINGCOMM_TEST_FAMILIES
#define RINGCOMM_TEST_FAMILIES RINGCOMM_FAMILIES
#endif

using Block = cuda::EmulatedBlock<cuda::BlockShared>;
using Context = cuda::EmulatedContext<cuda::BlockShared>;

inline void run_kernel(cuda::Family family, Context context, const cuda::KernelCall& call) {
  switch (family) {  // the cases are all of the table in most tests
#define RINGCOMM_CASE(name, Format)                                      \
  case cuda::Family::name:                                               \
    cuda::KernelInterpreter<cuda::Format, Context>(context, call).run(); \
    break;
    RINGCOMM_TEST_FAMILIES(RINGCOMM_CASE)
#undef RINGCOMM_CASE
    default:
      fail("no such kernel in this test", static_cast<int>(family), "");
  }
}

struct Launch {
  cuda::Family family = cuda::Family::bytes;
  uint32_t blocks = 1;  // at most the grid's
  cuda::KernelCall call = {};
};

struct Grid {
  uint32_t blocks = 1, threads = 1;
};

// Zeroed memory with the alignment of a device's allocations.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : data_(static_cast<char*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256))) {
    std::memset(data_, 0, bytes);
  }
  ~DeviceMemory() { std::free(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  char* get() const { return data_; }

 private:
  char* data_;
};

// One rank's stream: launches one after the other, each with all its blocks at once.
class Stream {
 public:
  explicit Stream(Grid grid) : grid_(grid) {
    pthread_barrier_init(&between_, nullptr, grid.blocks * grid.threads);
    for (uint32_t b = 0; b < grid.blocks; ++b) blocks_.push_back(std::make_unique<Block>(grid.threads));
  }
  ~Stream() { pthread_barrier_destroy(&between_); }

  void start(std::vector<Launch> launches) {
    launches_ = std::move(launches);
    for (uint32_t b = 0; b < grid_.blocks; ++b)
      for (uint32_t t = 0; t < grid_.threads; ++t) threads_.emplace_back([this, b, t] { thread(b, t); });
  }
  void join() {
    for (std::thread& t : threads_) t.join();
    threads_.clear();
  }

 private:
  void thread(uint32_t b, uint32_t t) {
    for (const Launch& l : launches_) {
      if (b < l.blocks) run_kernel(l.family, Context{t, grid_.threads, b, l.blocks, blocks_[b].get()}, l.call);
      pthread_barrier_wait(&between_);
    }
  }

  const Grid grid_;
  pthread_barrier_t between_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Launch> launches_;
  std::vector<std::thread> threads_;
};

// What one rank needs to launch one program: the device's copies of its tables.
class Loaded {
 public:
  Loaded(const std::vector<int32_t>& table, const cuda::DeviceLayout& layout, const std::vector<char*>& segments)
      : table_(table), layout_(layout) {
    CHECK_EQ(Program::load(table.data(), table.size(), program_), "");
    for (bool low : {false, true}) {
      if (low && layout.shape().low_latency == 0) continue;
      CHECK_EQ(layout.refusal(program_, low), "");
      ends_[low] = layout.ends(program_, low, segments);
    }
  }
  const Program& program() const { return program_; }
  cuda::DeviceEnds& ends(bool low) { return ends_[low]; }
  // A call with the tables and the FIFOs' numbers in it; chunks, piece and the rest are the caller's.
  cuda::KernelCall call(bool low_latency) const {
    cuda::KernelCall c = {};
    const cuda::DeviceEnds& ends = ends_[low_latency];
    c.program = table_.data();
    c.senders = ends.senders.data(), c.readers = ends.readers.data(), c.receivers = ends.receivers.data();
    layout_.describe(low_latency, c);
    return c;
  }

 private:
  const std::vector<int32_t> table_;
  const cuda::DeviceLayout& layout_;
  Program program_;
  cuda::DeviceEnds ends_[2];
};

// Segments of all ranks in one address space, and a stream each.
class KernelGroup {
 public:
  KernelGroup(const cuda::DeviceFifoShape& shape, uint32_t threads)
      : layout_(shape), grid_{static_cast<uint32_t>(shape.blocks), threads} {
    for (int r = 0; r < shape.ranks; ++r) {
      memory_.push_back(std::make_unique<DeviceMemory>(layout_.bytes()));
      segments_.push_back(memory_.back()->get());
      streams_.push_back(std::make_unique<Stream>(grid_));
      failures_.emplace_back(grid_.blocks);
    }
  }
  const cuda::DeviceLayout& layout() const { return layout_; }
  int ranks() const { return layout_.shape().ranks; }
  Grid grid() const { return grid_; }
  const std::vector<char*>& segments() const { return segments_; }
  std::vector<cuda::Failure>& failures(int rank) { return failures_[static_cast<size_t>(rank)]; }
  uint64_t abort = 0;  // all ranks'

  std::unique_ptr<Loaded> load(const std::vector<int32_t>& table) const {
    return std::make_unique<Loaded>(table, layout_, segments_);
  }
  // Ranks without launches take no part.
  void start(std::vector<std::vector<Launch>> launches) {
    for (int r = 0; r < ranks(); ++r) {
      for (Launch& l : launches[r]) l.call.abort = &abort, l.call.failures = failures_[r].data();
      if (!launches[r].empty()) streams_[r]->start(std::move(launches[r]));
    }
  }
  void join() {
    for (auto& s : streams_) s->join();
  }
  void run(std::vector<std::vector<Launch>> launches) {
    start(std::move(launches));
    join();
    for (auto& blocks : failures_)
      for (cuda::Failure& f : blocks) CHECK_EQ(f.word, 0u);
  }

 private:
  const cuda::DeviceLayout layout_;
  const Grid grid_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
  std::vector<char*> segments_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::vector<cuda::Failure>> failures_;
};

}  // namespace ringcomm::test
