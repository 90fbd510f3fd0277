#include "cuda/device_mode.h"

#include <algorithm>

namespace ringcomm::cuda {
namespace {

std::string both(size_t a, size_t b) { return "ranks " + std::to_string(a) + " and " + std::to_string(b); }

// Why these two cannot read each other's memory; "": they can, or nobody knows before they try.
std::string obstacle(const std::vector<RankDevice>& ranks, size_t i, size_t j) {
  const RankDevice &a = ranks[i], &b = ranks[j];
  if (a.host != b.host) return both(i, j) + " are on different machines (" + a.host + ", " + b.host + ")";
  if (a.uuid == b.uuid) {
    if (a.process != b.process && (a.one_process || b.one_process))
      return both(i, j) + " are two processes on " + a.uuid + ", which is in exclusive mode";
    return "";
  }
  if (a.process == b.process)
    return both(i, j) + " are on two devices of one process (" + a.uuid + ", " + b.uuid + "): use one process for each";
  for (const auto& [from, to] : {std::pair{i, j}, {j, i}}) {
    const std::vector<std::string>& not_reached = ranks[from].unreachable;
    if (std::find(not_reached.begin(), not_reached.end(), ranks[to].uuid) != not_reached.end())
      return ranks[from].uuid + " of rank " + std::to_string(from) + " cannot reach the memory of " + ranks[to].uuid +
             " of rank " + std::to_string(to);
  }
  return "";
}

}  // namespace

ModeChoice choose_mode(const std::vector<RankDevice>& ranks, std::optional<DeviceMode> wish) {
  std::string shared;
  bool one_process = true;  // wherever a device is shared
  for (size_t i = 0; i < ranks.size(); ++i)
    for (size_t j = i + 1; j < ranks.size(); ++j) {
      if (const std::string why = obstacle(ranks, i, j); !why.empty()) return {std::nullopt, why};
      if (ranks[i].uuid != ranks[j].uuid) continue;
      if (shared.empty()) shared = both(i, j) + " share " + ranks[i].uuid;
      one_process &= ranks[i].process == ranks[j].process;
    }
  const std::string fact = shared.empty() ? "every rank has a GPU of its own" : shared;
  if (!wish) return {shared.empty() ? DeviceMode::spin : DeviceMode::memop, fact};
  std::string reason = std::string("asked for ") + name(*wish) + "; " + fact;
  if (*wish == DeviceMode::spin && !shared.empty())
    reason += one_process
                  ? ": all their blocks must fit it at once"
                  : ": without MPS their kernels do not run at the same time, and each step waits for time slices";
  return {wish, reason};
}

bool rank_device(DeviceRuntime& runtime, const std::string& host, RankDevice& out, Error& error) {
  RankDevice made;
  if (!runtime.unreachable(made.unreachable, error)) return false;
  made.host = host;
  made.process = runtime.facts().process, made.uuid = runtime.facts().uuid;
  made.one_process = runtime.facts().one_process;
  out = std::move(made);
  return true;
}

}  // namespace ringcomm::cuda
