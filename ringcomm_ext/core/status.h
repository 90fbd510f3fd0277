// The error value of the data plane, and deadlines. Nothing here throws: an Error becomes a Python exception only at a Work.
#pragma once

#include <cstdint>
#include <cstdio>
#include <ctime>

#include "core/types.h"

namespace ringcomm {

enum class Cause : int32_t {
  none = 0,
  timeout,     // a deadline passed while a peer had not done its part
  peer_died,   // the process of a rank is gone
  peer_left,   // a rank destroyed the group while this one still needed it
  mismatch,    // ranks called different operations, or with different arguments
  aborted,     // abort() here or on another rank
  no_memory,   // shared memory could not be had, or the configured limit is reached
  internal,    // a broken invariant of ours
  connection,  // a wire between two ranks could not be had, or broke, though both live
};
const char* name(Cause cause);

// Plain old data, so that the first rank that sees a failure can put it on the board for all others.
struct Error {
  Cause cause = Cause::none;
  int32_t rank = -1;      // the culprit, as far as it is known
  int32_t reporter = -1;  // who saw it first
  int32_t peer = -1;      // whom the reporter waited for
  int32_t channel = -1;
  int32_t step = -1;
  int32_t pid = 0;          // of the culprit
  int32_t collective = -1;  // Collective the reporter was in
  uint64_t sequence = 0;
  char host[64] = {};   // of the culprit
  char text[768] = {};  // the whole sentence, ready to show

  explicit operator bool() const { return cause != Cause::none; }
};

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

inline constexpr int64_t kNoDeadline = INT64_MAX;

// The deadline `ms` from now; what does not fit (a user's "never" of thousands of years) is none.
inline int64_t after_ms(int64_t ms) {
  const int64_t now = now_ns();
  return ms > (kNoDeadline - now) / 1'000'000 ? kNoDeadline : now + ms * 1'000'000;
}

}  // namespace ringcomm
