// How bytes get into a slot of shared memory: through the caches, or past them (non-temporal stores). Which is better depends on where the two
// cores are, and a virtual machine's host moves them unasked, within seconds:
//
//   a line the peer has read, ns to write / to read       cached        streaming      1 MiB all_reduce, us, cached / streaming
//   near, Zen 4, two vCPUs, 2026-11-29                    6.9 / 1.5     1.9 / 3.8      52 / 139
//   far, the same machine minutes later                  27.6 / 3.8     1.9 / 3.8     480 / 100
//
// So the writer measures: it times its copies, now and then tries the other way, and takes streaming where it saves more in writing than it can cost
// behind it. One thread at a time (the sender's). No effect on results, only on time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/copy.h"
#include "core/status.h"

namespace ringcomm {

class SlotCopy {
 public:
  void operator()(char* slot, const void* data, size_t bytes) {
    if (bytes < kSmallest) return copy_cached(slot, data, bytes);
    const bool stream = streaming_ != (++copies_ % kTryEvery == 0);
    const int64_t begin = now_ns();
    (stream ? copy_streaming : copy_cached)(slot, data, bytes);
    (stream ? streamed_ : cached_).add((now_ns() - begin) * kLineBytes / static_cast<double>(bytes));
    streaming_ = cached_.cost() > streamed_.cost() + kDetourNs;
  }
  bool streaming() const { return streaming_; }

 private:
  static constexpr size_t kSmallest = 1024;   // below, two looks at the clock would show
  static constexpr uint32_t kTryEvery = 128;  // 25 ns/line once in 128 copies is 0.2 on average
  static constexpr double kDetourNs =
      10;  // what the way through memory may cost behind the write: between the two rows
  static constexpr size_t kLineBytes = 64;

  // The cheaper of the last two copies: a thread that lost its core during one must not decide.
  class Cost {
   public:
    void add(double ns_per_line) { before_ = last_, last_ = ns_per_line; }
    double cost() const { return std::min(before_, last_); }

   private:
    double before_ = 0, last_ = 0;
  };

  Cost cached_, streamed_;
  uint32_t copies_ = kTryEvery - 4;  // the first try comes soon
  bool streaming_ = false;
};

}  // namespace ringcomm
