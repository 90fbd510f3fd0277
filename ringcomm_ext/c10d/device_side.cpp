#include "c10d/device_side.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "c10d/overlap.h"
#include "c10d/signals.h"
#include "c10d/work.h"
#include "core/log.h"

namespace ringcomm {
namespace {

bool capturing(cuda::DeviceRuntime& runtime, const c10::Stream& stream) {
  bool is = false;
  Error error;
  TORCH_CHECK(runtime.capturing(handle_of(stream), is, error), "ringcomm: ", error.text);
  return is;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------- issuing

void DeviceSide::set_up(int64_t until_ns) {
  if (no_link_) std::rethrow_exception(no_link_);
  if (link_) return;
  TORCH_CHECK_VALUE(device_.has_index(), "ringcomm: a tensor on ", device_, " without a number");
  std::exception_ptr raised;
  Error error;
  link_ = DeviceLink::make(*group_, device_.index(), until_ns, [&raised] { return signals_raise(raised); }, error);
  if (raised) {  // the others go on meeting: this rank cannot begin again
    cuda::refuse(
        Cause::aborted,
        "ringcomm: setting up group '" + group_->spec().name + "' for tensors on " + device_.str() + " was interrupted",
        error);
    no_link_ = exception_of(error);
    std::rethrow_exception(raised);
  }
  if (link_) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    stream_ = guard.getStreamFromGlobalPool(device_);
    return;
  }
  Error whole = error;
  std::snprintf(whole.text, sizeof whole.text, "ringcomm: tensors on %s cannot be handled by group '%s': %.500s",
                device_.str().c_str(), group_->spec().name.c_str(), error.text);
  no_link_ = exception_of(group_->failed(error) ? error : whole);
  std::rethrow_exception(no_link_);
}

std::vector<DeviceFlightPtr> DeviceSide::issue(Launch& l, int64_t set_up_until_ns, int64_t deadline_ns) {
  std::vector<std::shared_ptr<DeviceProgram>> programs;
  for (const Call& call : l.calls) {
    std::string mistake;
    programs.push_back(programs_.find(call, mistake));
    TORCH_CHECK(programs.back() != nullptr, "ringcomm: ", mistake);
  }
  const c10::DeviceGuard on_device(device_);
  const std::lock_guard<std::mutex> hold(issue_);
  set_up(set_up_until_ns);
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const c10::Stream current = guard.getStream(device_);
  const bool captured = capturing(link_->runtime(), current);
  const c10::Stream stream = captured ? current : *stream_;

  std::vector<cuda::DeviceCall> calls = lower_all(l, programs, captured);  // throws before anything is begun
  std::vector<DeviceFlightPtr> flights;
  for (const Call& call : l.calls)
    flights.push_back(std::make_shared<DeviceFlight>(device_fingerprint(call, ++sequence_), current, stream, captured,
                                                     captured ? kNoDeadline : deadline_ns));
  Error error;
  if (failed(error)) {
    for (const DeviceFlightPtr& f : flights) f->finish(exception_of(error), error.cause, true);
    return flights;
  }
  {
    const c10::StreamGuard on_stream(stream);
    if (!captured) {
      c10::Event begun(device_.type());
      begun.record(current);
      begun.block(stream);
    }
    enqueue(l, calls, stream, captured);
    for (const DeviceFlightPtr& f : flights) f->end.record(stream);
  }
  std::vector<at::Tensor> used = l.keep;
  used.insert(used.end(), l.inputs.begin(), l.inputs.end());
  used.insert(used.end(), l.outputs.begin(), l.outputs.end());
  flights.back()->stash(std::move(used));
  if (captured)  // there is no end that could be waited for: it is in a graph
    for (const DeviceFlightPtr& f : flights) f->finish(nullptr, Cause::none, false);
  else
    take_off(flights);
  return flights;
}

std::vector<cuda::DeviceCall> DeviceSide::lower_all(const Launch& l,
                                                    const std::vector<std::shared_ptr<DeviceProgram>>& programs,
                                                    bool captured) {
  std::vector<cuda::DeviceCall> calls(l.calls.size());
  for (size_t i = 0; i < l.calls.size(); ++i) {
    DeviceProgram& program = *programs[i];
    if (program.number < 0) {
      TORCH_CHECK(!captured, "ringcomm: ", name(l.calls[i].collective), " of group '", group_->spec().name,
                  "' is captured into a graph before it ever ran: make one such call before the capture");
      Error error;
      program.number = link_->devices().load(program.table, error);
      TORCH_CHECK(program.number >= 0, "ringcomm: ", error.text);
    }
    calls[i].program = program.number;
    std::string mistake;
    TORCH_CHECK(lower(*group_, l.calls[i], program, sequence_.load() + 1 + i, calls[i], mistake),
                "ringcomm: ", mistake);
  }
  return calls;
}

// From here on an error is the group's end: its ranks' slots no longer agree.
void DeviceSide::enqueue(Launch& l, std::vector<cuda::DeviceCall>& calls, c10::Stream stream, bool captured) {
  const uint64_t first = sequence_.load() - l.calls.size() + 1;
  Error error;
  bool good = true;
  for (size_t i = 0; good && i < calls.size(); ++i) {
    separate(l.calls[i], group_->spec().rank, l.keep, device_, [&](char* to, const char* from, size_t bytes) {
      for (cuda::DeviceChunk& c : calls[i].in)
        if (c.data == from) c.data = to;
      good = good && link_->runtime().copy(to, from, bytes, handle_of(stream), error);
    });
    if (!captured) link_->board().note(first + i, calls[i].tag);
    good = good && link_->devices().enqueue(calls[i], handle_of(stream), error);
  }
  if (!good) {
    fail_all(error);
    TORCH_CHECK_WITH(DistBackendError, false, "ringcomm: ", error.text);
  }
  l.staged.copy_back();
}

void DeviceSide::take_off(const std::vector<DeviceFlightPtr>& flights) {
  {
    const std::lock_guard<std::mutex> hold(flights_mutex_);
    flights_.insert(flights_.end(), flights.begin(), flights.end());
    under_way_.store(static_cast<int>(flights_.size()));
  }
  DeviceWatch::process().add(shared_from_this());
}

// ---------------------------------------------------------------------------------------------------------------- the end

void DeviceSide::close(int64_t until_ns) {
  while (busy() && now_ns() < until_ns) {
    const timespec nap{0, 500'000};
    nanosleep(&nap, nullptr);
  }
  Error error;
  if (busy()) {
    cuda::refuse(Cause::peer_left,
                 "ringcomm: group '" + group_->spec().name + "' was destroyed with calls under way on " + device_.str(),
                 error);
    fail_all(error);
  }
  const std::lock_guard<std::mutex> hold(issue_);
  if (!link_) return;
  if (!failed(error) && link_->close(until_ns)) {
    link_.reset();
  } else {
    log(LogLevel::info, "devices: memory of group " + group_->spec().name +
                            " is kept until the process ends: not all ranks came to its end");
  }
}

}  // namespace ringcomm
