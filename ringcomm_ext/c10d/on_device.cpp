// The way of a call whose tensors are on a device. Everything before it, from the checks to flat memory, is the host's.
#include <utility>

#include "c10d/backend.h"
#include "c10d/device_work.h"
#include "engine/process.h"

namespace ringcomm {

using c10::intrusive_ptr;

std::shared_ptr<DeviceSide> Backend::side() const {
  const std::lock_guard<std::mutex> hold(side_mutex_);
  return side_;
}

std::shared_ptr<DeviceSide> Backend::side_of(c10::Device device) {
  const std::lock_guard<std::mutex> hold(side_mutex_);
  if (!side_) side_ = std::make_shared<DeviceSide>(group_, device);
  TORCH_CHECK_VALUE(side_->device() == device, "ringcomm: group '", group_->spec().name, "' has had tensors on ",
                    side_->device(), " and now one on ", device, "; a group uses one device of each rank");
  return side_;
}

// Where calls are under way on a device the group is left when they are over.
bool Backend::devices_leave_later() {
  const auto devices = side();
  if (!devices || !devices->busy()) return false;
  devices->leave_later();
  return true;
}

std::exception_ptr Backend::close_devices() {
  const auto devices = side();
  return devices ? devices->close(kLeaveNs) : nullptr;
}

intrusive_ptr<c10d::Work> Backend::issue_on_device(Launch&& l, c10::Device device) {
  group();  // its errors
  TORCH_INTERNAL_ASSERT(!l.finish && !l.calls.empty());
  const auto side = side_of(device);
  auto work = c10::make_intrusive<DeviceWork>(getRank(), l.type, l.title, l.inputs, group_, side, l.outputs);
  auto flights = side->issue(l, after_ms(timeout_ms_.load()), deadline(l.timeout));
  work->begin(std::move(flights), hooked_.load(std::memory_order_acquire) ? hook_ : nullptr);
  if (blocks_.any()) blocks_.add(work);
  return work;
}

uint64_t Backend::getSequenceNumberForGroup() {
  const auto devices = side();
  return group().sequence() + (devices ? devices->sequence() : 0);
}

}  // namespace ringcomm
