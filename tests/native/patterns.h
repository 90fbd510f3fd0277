// Programs of programs.h by name, the same for tests of several interpreters.
#pragma once

#include "programs.h"

namespace ringcomm::test {

enum class Pattern { one_shot, ring, lagging_ring, two_shot, all_gather, all_to_all, broadcast };
inline constexpr int kPatterns = 7;

inline Packed table_of(Pattern pattern, int ranks, int rank) {
  switch (pattern) {
    case Pattern::one_shot:
      return one_shot(ranks, rank);
    case Pattern::ring:
      return ring(ranks, rank, 0);
    case Pattern::lagging_ring:
      return ring(ranks, rank, 1);
    case Pattern::two_shot:
      return two_shot(ranks, rank);
    case Pattern::all_gather:
      return all_gather(ranks, rank);
    case Pattern::all_to_all:
      return all_to_all(ranks, rank);
    case Pattern::broadcast:
      return broadcast(ranks, rank, ranks - 1);
  }
  return {};
}

inline const char* name(Pattern pattern) {
  static const char* const names[kPatterns] = {"one_shot",   "ring",       "lagging_ring", "two_shot",
                                               "all_gather", "all_to_all", "broadcast"};
  return names[static_cast<int>(pattern)];
}

}  // namespace ringcomm::test
