#include "engine/backoff.h"

#include <sched.h>

#include <atomic>

#include "core/status.h"

namespace ringcomm {
namespace {

// Measured on 2 cores: a yield alone costs 0.4 us, with peers 2-3 us, with a busy stranger a whole slice (4 ms). 300 us misfired among 8 ranks.
constexpr int64_t kStrangerNs = 1'500'000;
constexpr int64_t kNoYieldNs = 30'000'000;
constexpr int kPausesPerLook = 4;  // about 100 ns where a pause takes 24

std::atomic<int64_t> no_yield_until{0};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

}  // namespace

bool Backoff::stay_awake() { return policy_.spin_ns > 0 ? spin() : yield(); }

bool Backoff::spin() {
  const int64_t now = now_ns();
  if (spin_until_ == 0) spin_until_ = now + policy_.spin_ns;
  if (now >= spin_until_) return false;
  for (int i = 0; i < kPausesPerLook; ++i) pause();
  return true;
}

bool Backoff::yield() {
  if (yields_done_ >= policy_.yields) return false;
  const int64_t before = now_ns();
  if (before < no_yield_until.load(std::memory_order_relaxed)) return false;
  sched_yield();
  ++yields_done_;
  const int64_t after = now_ns();
  if (after - before > kStrangerNs) no_yield_until.store(after + kNoYieldNs, std::memory_order_relaxed);
  return true;
}

}  // namespace ringcomm
