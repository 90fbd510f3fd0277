// Which mode a group runs in, from what its ranks have gathered. A pure function: the same table gives the same answer on every rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/device_group.h"

namespace ringcomm::cuda {

// One rank's device, as its process sees it.
struct RankDevice {
  std::string host;     // of the machine: whatever tells two of them apart
  std::string process;  // DeviceFacts::process
  std::string uuid;     // DeviceFacts::uuid
  bool one_process = false;
  std::vector<std::string> unreachable;  // DeviceRuntime::unreachable
};

struct ModeChoice {
  std::optional<DeviceMode> mode;  // none: these ranks cannot share memory of devices
  std::string reason;              // one sentence, for logs and errors
};

// `wish`: what the user asked for. Without one, spin where every rank has a GPU of its own, memop where two ranks share one: kernels of different processes do not run at the same time on one
// GPU (without MPS), so one that spins for another holds it up.
ModeChoice choose_mode(const std::vector<RankDevice>& ranks, std::optional<DeviceMode> wish);

// What this rank tells the others. False: `error`.
bool rank_device(DeviceRuntime& runtime, const std::string& host, RankDevice& out, Error& error);

}  // namespace ringcomm::cuda
