// How long to stay awake for the next message. Measured policy (docs/performance.md): where the ranks fit the cores, spin about as long as a wake
// costs, then sleep. Where they do not, never spin: yield a bounded number of times, each one timed, then sleep; a yield that took a whole
// time slice means a stranger shares the core, and yielding is off for a while.
#pragma once

#include <cstdint>

namespace ringcomm {

struct WaitPolicy {
  int64_t spin_ns = 0;
  int yields = 30;
};

class Backoff {
 public:
  explicit Backoff(const WaitPolicy& policy) : policy_(policy) {}
  // True: look again. False: the budget is used up, sleep.
  bool stay_awake();
  void reset() { spin_until_ = 0, yields_done_ = 0; }

 private:
  bool spin();
  bool yield();

  const WaitPolicy policy_;
  int64_t spin_until_ = 0;  // 0: not started
  int64_t next_yield_ = 0;
  int yields_done_ = 0;
};

}  // namespace ringcomm
