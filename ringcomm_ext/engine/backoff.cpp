#include "engine/backoff.h"

#include <sched.h>

#include <atomic>

#include "core/status.h"

namespace ringcomm {
namespace {

// Measured on 2 cores: a yield alone costs 0.4 us, with peers 2-3 us, with a busy stranger a whole slice (4 ms). 300 us misfired among 8 ranks.
constexpr int64_t kStrangerNs = 1'500'000;
constexpr int64_t kNoYieldNs = 30'000'000;
constexpr int64_t kOfferNs = 10'000;
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

namespace {

// False: yielding is off because a stranger took a whole slice.
bool timed_yield(int64_t now) {
  if (now < no_yield_until.load(std::memory_order_relaxed)) return false;
  sched_yield();
  const int64_t after = now_ns();
  if (after - now > kStrangerNs) no_yield_until.store(after + kNoYieldNs, std::memory_order_relaxed);
  return true;
}

}  // namespace

bool Backoff::stay_awake() { return policy_.spin_ns > 0 ? spin() : yield(); }

// The scheduler may have put the peer on this very core although there are enough: it cannot come while this thread spins. So the
// core is offered now and then; where the peer has its own, a yield costs 0.4 us.
bool Backoff::spin() {
  const int64_t now = now_ns();
  if (spin_until_ == 0) {
    spin_until_ = now + policy_.spin_ns;
    next_yield_ = now + kOfferNs;
  }
  if (now >= spin_until_) return false;
  if (now >= next_yield_) {
    next_yield_ = now + kOfferNs;
    if (timed_yield(now)) return true;
  }
  for (int i = 0; i < kPausesPerLook; ++i) pause();
  return true;
}

bool Backoff::yield() { return yields_done_++ < policy_.yields && timed_yield(now_ns()); }

}  // namespace ringcomm
