// The devices of a group's ranks, connected: which runtime, which mode, whose memory. Made when the first tensor on a device comes, by all ranks at the same call.
//
// Threads: make and close by one at a time; the rest as DeviceGroup says.
#pragma once

#include <functional>
#include <memory>

#include "connections/segment.h"
#include "cuda/device_group.h"
#include "device/board.h"
#include "engine/communicator.h"

namespace ringcomm {

class DeviceLink {
 public:
  // A collective of the group's ranks: three meetings. Null and `error`, the same sentence on every rank, where any of them cannot; `error` is empty where `interrupted` said true.
  static std::unique_ptr<DeviceLink> make(Communicator& group, int ordinal, int64_t deadline_ns,
                                          const std::function<bool()>& interrupted, Error& error);
  ~DeviceLink();  // without close(): leaves all memory to the process's end, since peers may still use it

  cuda::DeviceRuntime& runtime() { return runtime_; }
  cuda::DeviceGroup& devices() { return *devices_; }
  DeviceBoard& board() { return board_; }
  const std::string& reason() const { return reason_; }  // of the mode

  // The orderly end: all ranks meet, then each gives its memory back. Streams must be done. False: somebody did not come, or `interrupted` said true, and nothing is given back. The group's
  // calls go on whatever comes of it.
  bool close(int64_t deadline_ns, const std::function<bool()>& interrupted);

 private:
  DeviceLink(Communicator& group, cuda::DeviceRuntime& runtime);
  bool prepare(cuda::DeviceMode mode, Error& error);
  std::string card() const;
  bool connect(const std::vector<std::string>& cards, int64_t deadline_ns, const std::function<bool()>& interrupted,
               Error& error);

  Communicator& group_;
  cuda::DeviceRuntime& runtime_;
  std::string reason_;
  std::vector<std::shared_ptr<Segment>> pages_;  // by rank: flags, then the board
  DeviceBoard board_;
  struct Offer;
  std::unique_ptr<Offer> offer_;
  std::unique_ptr<cuda::DeviceGroup> devices_;
};

}  // namespace ringcomm
