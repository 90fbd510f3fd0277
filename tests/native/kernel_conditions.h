// What is not a plain run: processes, PREMUL_SUM, replay with frozen arguments, positions that wrap, other calls' slots, abort and timeout.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel_plans.h"

namespace ringcomm::test {

// Every rank a process; segments are POSIX shared memory that each maps where it likes. Before any thread is made: they are forked.
inline void processes() {
  constexpr int kRanks = 4;
  const std::string name = "/ringcomm-cuda-kernel-test-" + std::to_string(getpid());
  const cuda::DeviceLayout layout({kRanks, 2, 4, 4096, 2048});
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  CHECK(fd >= 0 && shm_unlink(name.c_str()) == 0);
  const size_t bytes = (layout.bytes() + 4095) / 4096 * 4096;
  CHECK(ftruncate(fd, static_cast<off_t>(bytes * kRanks)) == 0);
  for (const Make& make : {Make(two_shot), Make(one_shot)}) {
    const Plan tables = plan(make, kRanks);
    std::vector<pid_t> children;
    for (int r = 0; r < kRanks; ++r) {
      children.push_back(fork());
      CHECK(children.back() >= 0);
      if (children.back() > 0) continue;
      alarm(120);
      std::vector<char*> segments(kRanks);
      for (int k = 0; k < kRanks; ++k) {  // another order, so other addresses, in each process
        const int peer = (k + r) % kRanks;
        void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(bytes * peer));
        CHECK(at != MAP_FAILED);
        segments[static_cast<size_t>(peer)] = static_cast<char*>(at);
      }
      Loaded loaded(tables[r], layout, segments);
      std::vector<std::unique_ptr<Job>> jobs;
      std::vector<Launch> launches;
      uint64_t abort = 0;
      std::vector<cuda::Failure> failures(2);
      for (size_t size : {0, 1, 15, 700, 3001})
        for (bool low : {false, true}) {
          Task t;
          t.size = size, t.low_latency = low, t.blocks = 2, t.tag = static_cast<uint32_t>(jobs.size() + 1);
          jobs.push_back(std::make_unique<Job>(tables, t));  // the same inputs in all processes
          launches.push_back(jobs.back()->launch(loaded, r));
          launches.back().call.abort = &abort, launches.back().call.failures = failures.data();
        }
      Stream stream({2, 2});
      stream.start(launches);
      stream.join();
      for (const auto& job : jobs) job->check(r);
      std::fflush(nullptr);
      _exit(0);
    }
    for (pid_t child : children) {
      int status = 0;
      CHECK(waitpid(child, &status, 0) == child);
      CHECK_EQ(status, 0);
    }
  }
  close(fd);
}

// The ranks of one plan in one group, for tests that look at more than results.
struct Loads {
  Loads(KernelGroup& g, const Make& make) : group(g), tables(plan(make, g.ranks())) {
    for (const Packed& table : tables) ranks.push_back(group.load(table));
  }
  std::vector<std::vector<Launch>> launches(Job& job, int times = 1) {
    std::vector<std::vector<Launch>> all;
    for (int r = 0; r < group.ranks(); ++r) all.emplace_back(static_cast<size_t>(times), job.launch(*ranks[r], r));
    return all;
  }
  KernelGroup& group;
  const Plan tables;
  std::vector<std::unique_ptr<Loaded>> ranks;
};

inline void premultiplied() {
  const Make makes[] = {one_shot, two_shot, reduce_scatter, [](int n, int r) { return ring(n, r, 1); }};
  for (const Make& make : makes)
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64})
      for (bool low : {false, true}) {
        KernelGroup group({3, 2, 4, 4096, 2048}, 2);
        Loads loads(group, make);
        Task t;
        t.dtype = dtype, t.size = 777, t.factor = 0.3, t.low_latency = low, t.blocks = 2, t.in_place = low;
        Job job(loads.tables, t);
        group.run(loads.launches(job));
        job.check();
      }
}

// The same arguments again and again, as a captured graph does; between them other calls.
inline void replay() {
  for (bool low : {false, true}) {
    KernelGroup group({3, 2, 4, 4096, 2048}, 2);
    Loads loads(group, two_shot), others(group, all_gather);
    Task t;
    t.size = 500, t.blocks = 2, t.low_latency = low;
    Job job(loads.tables, t);
    const auto captured = loads.launches(job, 3);
    for (int times = 0; times < 4; ++times) {
      job.reset();
      group.run(captured);
      job.check();
      Task between = t;
      between.size = 100 + static_cast<size_t>(times), between.blocks = 1, between.tag = 9;
      Job other(others.tables, between);
      group.run(others.launches(other));
      other.check();
    }
  }
}

inline void positions_wrap() {
  constexpr uint32_t kStart = 0xfffffffau;
  for (bool low : {false, true}) {
    KernelGroup group({3, 2, 4, 4096, 2048}, 2);
    Loads loads(group, two_shot);
    for (auto& rank : loads.ranks) {
      cuda::DeviceEnds& ends = rank->ends(low);
      for (int b = 0; b < 2; ++b) {
        for (cuda::SenderEnd& s : ends.senders) s.positions[b] = kStart;
        for (cuda::ReaderEnd& r : ends.readers) r.heads[b].position = kStart;
        for (cuda::ReceiverEnd& r : ends.receivers) r.positions[b] = kStart, r.credits[b].position = kStart;
      }
    }
    Task t;
    t.size = 3 * 64 * 17, t.blocks = 2, t.low_latency = low;
    Job job(loads.tables, t);
    group.run(loads.launches(job));
    job.check();
    CHECK(loads.ranks[0]->ends(low).receivers[0].positions[0] < 100);
  }
}

inline uint64_t cause_of(uint64_t word) { return word & 0x7f; }
inline int peer_of(uint64_t word) { return static_cast<int>(word >> cuda::kFailurePeer & 0xffffff); }

// Rank 1 made another call: rank 0 finds its slot, says whose and which, and ends; the abort word ends the other.
inline void foreign_tags() {
  for (bool low : {false, true}) {
    KernelGroup group({2, 2, 4, 4096, 2048}, 2);
    Loads loads(group, one_shot);
    Task t;
    t.size = 300, t.blocks = 2, t.low_latency = low;
    Job job(loads.tables, t);
    auto launches = loads.launches(job);
    launches[1][0].call.tag = 77;
    group.start(launches);
    group.join();
    for (int r = 0; r < 2; ++r)
      for (const cuda::Failure& f : group.failures(r)) {
        CHECK_EQ(cause_of(f.word), static_cast<uint64_t>(cuda::FailureCause::foreign_tag));
        CHECK_EQ(peer_of(f.word), 1 - r);
        CHECK_EQ(f.tag, r == 0 ? 77u : 1u);
      }
  }
}

// One rank does not come: the others end by the abort word, or by their own timeout, and say whom they waited for.
inline void missing_rank() {
  for (bool low : {false, true})
    for (bool timeout : {false, true}) {
      KernelGroup group({3, 2, 4, 4096, 2048}, 4);
      Loads loads(group, two_shot);
      Task t;
      t.size = 300, t.blocks = 2, t.low_latency = low;
      Job job(loads.tables, t);
      auto launches = loads.launches(job);
      launches[2].clear();
      for (int r = 0; r < 2 && timeout; ++r) launches[r][0].call.timeout_ns = 50'000'000;
      group.start(launches);
      if (!timeout) {
        usleep(20'000);
        for (int r = 0; r < 2; ++r)
          for (const cuda::Failure& f : group.failures(r)) CHECK_EQ(__atomic_load_n(&f.word, __ATOMIC_RELAXED), 0u);
        __atomic_store_n(&group.abort, 1, __ATOMIC_RELAXED);
      }
      group.join();  // the program's alarm is the bound
      for (int r = 0; r < 2; ++r)
        for (const cuda::Failure& f : group.failures(r)) {
          CHECK_EQ(cause_of(f.word),
                   static_cast<uint64_t>(timeout ? cuda::FailureCause::timeout : cuda::FailureCause::aborted));
          const bool peer_is_missing = peer_of(f.word) == 2 || peer_of(f.word) == 1 - r;  // the other waits for it, too
          CHECK(peer_is_missing);
        }
    }
}

}  // namespace ringcomm::test
