// The context of device_context.h for g++: the threads of a block are threads. For tests; no kernel code.
//
// The barrier is pthread's. std::barrier hands sleepers over through a pool that all barriers of a process share, which orders threads of different
// blocks, and so hides a missing release from ThreadSanitizer.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <cstdint>

namespace ringcomm::cuda {

template <class Shared>
class EmulatedBlock {
 public:
  explicit EmulatedBlock(uint32_t threads) { pthread_barrier_init(&barrier_, nullptr, threads); }
  ~EmulatedBlock() { pthread_barrier_destroy(&barrier_); }
  EmulatedBlock(const EmulatedBlock&) = delete;
  EmulatedBlock& operator=(const EmulatedBlock&) = delete;

  Shared shared = {};
  // `turn` alternates: who is late reads one word while who is early may already write the other.
  bool sync_any(bool x, uint32_t turn) {
    if (x) __atomic_store_n(&any_[turn], 1u, __ATOMIC_RELAXED);
    pthread_barrier_wait(&barrier_);
    return __atomic_load_n(&any_[turn], __ATOMIC_RELAXED) != 0;
  }

 private:
  pthread_barrier_t barrier_;
  uint32_t any_[2] = {};  // never taken back: a block whose barrier once gave true ends
};

template <class Shared>
struct EmulatedContext {
  uint32_t tid, nthr, blk, nblk;
  EmulatedBlock<Shared>* block;
  uint32_t turn = 0;

  Shared& shared() { return block->shared; }
  bool sync_any(bool x) {
    const uint32_t now = turn;
    turn ^= 1;
    return block->sync_any(x, now);
  }
  void pause() { sched_yield(); }
  uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
  }
};

}  // namespace ringcomm::cuda
