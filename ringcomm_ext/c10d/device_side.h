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
#include <string>

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

// Of an exception that comes out of torch: without torch's own stack.
std::string sentence(const std::exception& e);

class DeviceSide final : public Watched, public std::enable_shared_from_this<DeviceSide> {
 public:
  DeviceSide(CommunicatorPtr group, c10::Device device)
      : group_(std::move(group)), device_(device), programs_(*group_) {}

  c10::Device device() const { return device_; }
  // The launch's calls, each with a flight; `set_up_until_ns`: when the ranks must have come, should this be the first. Throws where nothing was begun, or where the group has failed by it; what fails
  // later is in the flights.
  std::vector<DeviceFlightPtr> issue(Launch& launch, int64_t set_up_until_ns, int64_t deadline_ns);
  uint64_t sequence() const { return sequence_.load(); }
  // Whether the flight is over, good or bad. Asks the device. Any thread.
  bool over(DeviceFlight& flight);

  bool look() override;
  bool busy() const override { return under_way_.load() > 0 || leaves_.load(); }
  // The orderly end. What is under way may end, as long as that takes: it has deadlines. Then ranks meet for `patience_ns` at most, and memory is given back; where somebody does not come it
  // is left to the end of the process. Returns what Python raised meanwhile.
  std::exception_ptr close(int64_t patience_ns);
  // The end of a group whose handle is gone: when nothing is under way any more, by the watch.
  void leave_later();

 private:
  void set_up(int64_t until_ns);
  bool capturing(const c10::Stream& stream);
  std::vector<cuda::DeviceCall> lower_all(const Launch& launch,
                                          const std::vector<std::shared_ptr<DeviceProgram>>& programs, bool captured);
  struct Copy;  // of memory that a call's output would overwrite
  std::vector<Copy> take_apart(Launch& launch, std::vector<cuda::DeviceCall>& calls) const;
  std::vector<DeviceFlightPtr> take_off(const Launch& launch, c10::Stream issuer, c10::Stream stream,
                                        const DeviceEventPtr& begun, int64_t deadline_ns);
  bool enqueue(const Launch& launch, const std::vector<cuda::DeviceCall>& calls, const std::vector<Copy>& copies,
               const std::vector<DeviceFlightPtr>& flights, Error& error);
  std::unique_lock<std::timed_mutex> let_end(int64_t patience_ns, std::exception_ptr& raised);

  // device_failure.cpp
  bool failed(Error& error);
  bool ended(Error& error);
  DeviceFlightPtr oldest();
  void look_at_calls();
  void empty_stream(const Error& why);
  // What has gone wrong, as far as it can be seen from here. Of calls in flight the oldest is the one to blame.
  bool find_failure(const DeviceFlight& oldest, Error& error);
  bool spoiled(const DeviceFlight& flight, Error& error);
  bool device_failed(Error& error);
  bool differs(const DeviceFlight& flight, Error& error) const;
  bool find_mismatch(Error& error);
  bool find_dead(const DeviceFlight& oldest, Error& error);
  Error late(const DeviceFlight& oldest) const;
  Error told(const Error& error) const;
  void fail_all(const Error& error);

  const CommunicatorPtr group_;
  const c10::Device device_;
  DevicePrograms programs_;

  std::timed_mutex issue_;      // order of calls
  std::exception_ptr no_link_;  // why there is none, for good
  std::optional<c10::Stream> stream_;
  std::atomic<uint64_t> sequence_{0};

  // Held by whoever asks it anything but to enqueue; nobody calls back with it. Taken after issue_.
  std::mutex link_mutex_;
  std::unique_ptr<DeviceLink> link_;  // changed with both held

  std::mutex flights_mutex_;  // taken after the others
  std::deque<DeviceFlightPtr> flights_;
  std::atomic<int> under_way_{0};
  std::atomic<bool> leaves_{false};
  int64_t next_look_ = 0, gone_since_ = 0;  // the watch's

  std::mutex error_mutex_;
  Error error_;  // this group's end on the device
};

}  // namespace ringcomm
