// How the ranks of a group tell each other something when they are connected already: over the group's own host connections, in the order of its calls.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/communicator.h"

namespace ringcomm {

inline constexpr size_t kMostSaid = 4000;  // bytes a rank can say

// Every rank says something, `mine`, and hears what all have said, by rank. A collective of the group like any other: all ranks at the same place among their calls. Blocks.
// False and `error`: the group failed, `interrupted` said true (then `error` is empty), or the deadline (now_ns() time) passed.
bool meet(Communicator& group, const std::string& mine, int64_t deadline_ns, const std::function<bool()>& interrupted,
          std::vector<std::string>& all, Error& error);

// The same for ranks that may have failed in what they do: `failed` is this rank's own error, or none. Where any rank's has text the answer is false and `error`, on all ranks, the lowest
// such rank's.
bool meet_or_fail(Communicator& group, const Error& failed, const std::string& mine, int64_t deadline_ns,
                  const std::function<bool()>& interrupted, std::vector<std::string>& all, Error& error);

}  // namespace ringcomm
