// The calls of one group whose tensors are on a device. It is set up at the first of them, by all ranks together; from then on calls are enqueued and nobody waits.
//
//   caller's stream   ... inputs made . (event) ............ wait(): behind the end .......
//   the group's           ............ behind it . calls, copies back . (end event) ....
//
// A caller whose stream is being captured has everything put into that stream itself.
//
// Threads: issue by any, one at a time inside; look by the watch; close by one.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "c10d/device_flight.h"
#include "c10d/device_watch.h"
#include "c10d/launch.h"
#include "device/link.h"
#include "device/lowering.h"

namespace ringcomm {

// What the driver calls it.
inline cuda::StreamHandle handle_of(const c10::Stream& stream) {
  return static_cast<cuda::StreamHandle>(stream.native_handle());
}

class DeviceSide final : public Watched, public std::enable_shared_from_this<DeviceSide> {
 public:
  DeviceSide(CommunicatorPtr group, c10::Device device)
      : group_(std::move(group)), device_(device), programs_(*group_) {}

  c10::Device device() const { return device_; }
  // The launch's calls, each with a flight; `set_up_until_ns`: when the ranks must have come, should this be the first. Throws where nothing was begun; what fails
  // later is in the flights.
  std::vector<DeviceFlightPtr> issue(Launch& launch, int64_t set_up_until_ns, int64_t deadline_ns);
  uint64_t sequence() const { return sequence_.load(); }

  bool look() override;
  bool busy() const override { return under_way_.load() > 0; }
  // The orderly end: what is under way may end until then, the ranks meet, memory is given back. Where somebody does not come it is left to the end of the process.
  void close(int64_t until_ns);

 private:
  void set_up(int64_t until_ns);
  std::vector<cuda::DeviceCall> lower_all(const Launch& launch,
                                          const std::vector<std::shared_ptr<DeviceProgram>>& programs, bool captured);
  void enqueue(Launch& launch, std::vector<cuda::DeviceCall>& calls, c10::Stream stream, bool captured);
  void take_off(const std::vector<DeviceFlightPtr>& flights);
  bool failed(Error& error);
  // What has gone wrong, as far as it can be seen from here. Of calls in flight the oldest is the one to blame.
  bool find_failure(const DeviceFlight& oldest, Error& error);
  bool differs(const DeviceFlight& flight, Error& error) const;
  bool find_mismatch(Error& error);
  bool find_dead(const DeviceFlight& oldest, Error& error);
  Error late(const DeviceFlight& oldest) const;
  void fail_all(const Error& error);

  const CommunicatorPtr group_;
  const c10::Device device_;
  DevicePrograms programs_;

  std::mutex issue_;  // order of calls
  std::unique_ptr<DeviceLink> link_;
  std::optional<c10::Stream> stream_;
  std::exception_ptr no_link_;  // why there is none, for good
  std::atomic<uint64_t> sequence_{0};

  std::mutex flights_mutex_;  // taken after issue_
  std::deque<DeviceFlightPtr> flights_;
  std::atomic<int> under_way_{0};
  int64_t next_look_ = 0, dead_since_ = 0;  // the watch's

  std::mutex error_mutex_;
  Error error_;  // this group's end on the device
};

}  // namespace ringcomm
