// A call of the engine as one for a device: the rule, the program, the cut and the piece that the host would use, so that results have the host's bits.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/device_group.h"
#include "engine/communicator.h"

namespace ringcomm {

struct DeviceProgram {
  std::vector<int32_t> table;  // packed
  int chunks_in = 0, chunks_out = 0;
  int number = -1;  // of DeviceGroup::load; whoever orders the calls sets it
};

// The programs of one group. Any thread.
class DevicePrograms {
 public:
  explicit DevicePrograms(const Communicator& group) : group_(group) {}
  // Null and a sentence where there is none. The first time it takes Python's lock, so the caller holds no lock that whoever has that one may want.
  std::shared_ptr<DeviceProgram> find(const Call& call, std::string& error);

 private:
  const Communicator& group_;
  std::mutex mutex_;
  std::map<std::tuple<Collective, std::string, int>, std::shared_ptr<DeviceProgram>> programs_;
};

// Everything of the device's call but the program's number. False and a sentence where no device does it.
bool lower(const Communicator& group, const Call& call, const DeviceProgram& program, uint64_t sequence,
           cuda::DeviceCall& out, std::string& error);

// What ranks compare of a call that is to be the same on all of them.
Fingerprint device_fingerprint(const Call& call, uint64_t sequence);

}  // namespace ringcomm
