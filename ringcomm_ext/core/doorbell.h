// How a process sleeps and how its peers wake it: one word and one flag in shared memory per process.
//
// Sleeper:  v = word; flag = 1; look once more; nothing: sleep while word == v; then from the top (the flag is raised again).
// Waker:    publish; if (flag) { if (exchange(flag, 0)) { ++word; wake ALL } }
// Publish-then-look against raise-then-look is the store-buffering pattern: all four accesses are sequentially consistent. One flag
// serves all sleepers of the process, so who clears it wakes all of them. tests/model explores this protocol exhaustively.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringcomm {

struct alignas(64) Doorbell {
  std::atomic<uint32_t> sleeping;
  std::atomic<uint32_t> word;

  void ring() {
    if (sleeping.load(std::memory_order_seq_cst) != 0 && sleeping.exchange(0, std::memory_order_seq_cst) != 0) wake();
  }
  // Failure and exit: whoever sleeps must look, whatever the flag says.
  void ring_always() {
    sleeping.store(0, std::memory_order_seq_cst);
    wake();
  }
  uint32_t raise() {
    const uint32_t seen = word.load(std::memory_order_seq_cst);
    sleeping.store(1, std::memory_order_seq_cst);
    return seen;
  }
  // Returns on a wake, at the time out, or on a signal (true: a signal came in).
  bool sleep(uint32_t seen, int64_t timeout_ns);

 private:
  void wake();
};

// The same sleep for words inside one process.
bool futex_sleep(std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_ns, bool shared);
void futex_wake_all(std::atomic<uint32_t>& word, bool shared);

}  // namespace ringcomm
