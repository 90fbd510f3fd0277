#include "c10d/device_side.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "c10d/overlap.h"
#include "c10d/signals.h"
#include "c10d/work.h"
#include "core/log.h"
#include "device/runtimes.h"
#include "engine/cutting.h"

namespace ringcomm {

// ---------------------------------------------------------------------------------------------------------------- set-up

// Of a device that has no runtime yet the driver is asked: opening one is no thing to do in a capture.
bool DeviceSide::capturing(const c10::Stream& stream) {
  bool is = false;
  Error error;
  const bool known = link_ ? link_->runtime().capturing(handle_of(stream), is, error)
                           : stream_is_capturing(device_.index(), handle_of(stream), is, error);
  TORCH_CHECK(known, "ringcomm: ", error.text);
  return is;
}

void DeviceSide::set_up(int64_t until_ns) {
  if (no_link_) std::rethrow_exception(no_link_);
  if (link_) return;
  std::exception_ptr raised;
  Error error;
  auto link = DeviceLink::make(*group_, device_.index(), until_ns, [&raised] { return signals_raise(raised); }, error);
  if (raised) {  // the others go on meeting: this rank cannot begin again
    cuda::refuse(Cause::aborted,
                 "ringcomm: setting up group '" + group_->spec().name + "' for tensors on " + device_.str() +
                     " was interrupted; other ranks may wait in it still, so the group's calls may not fit together "
                     "any more: destroy it",
                 error);
    no_link_ = exception_of(error);
    std::rethrow_exception(raised);
  }
  if (link) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    stream_ = guard.getStreamFromGlobalPool(device_);
    const std::lock_guard<std::mutex> hold(link_mutex_);
    link_ = std::move(link);
    return;
  }
  Error whole = error;
  std::snprintf(whole.text, sizeof whole.text, "ringcomm: tensors on %s cannot be handled by group '%s': %.500s",
                device_.str().c_str(), group_->spec().name.c_str(), error.text);
  no_link_ = exception_of(group_->failed(error) ? error : whole);
  std::rethrow_exception(no_link_);
}

// ---------------------------------------------------------------------------------------------------------------- issuing

struct DeviceSide::Copy {
  size_t call;
  char* to;
  const char* from;
  size_t bytes;
};

std::vector<DeviceFlightPtr> DeviceSide::issue(Launch& l, int64_t set_up_until_ns, int64_t deadline_ns) {
  TORCH_CHECK_VALUE(device_.has_index(), "ringcomm: a tensor on ", device_, " without a number");
  std::vector<std::shared_ptr<DeviceProgram>> programs;
  for (const Call& call : l.calls) {
    std::string mistake;
    programs.push_back(programs_.find(call, mistake));
    TORCH_CHECK(programs.back() != nullptr, "ringcomm: ", mistake);
  }
  const c10::DeviceGuard on_device(device_);
  const std::lock_guard<std::timed_mutex> hold(issue_);
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const c10::Stream current = guard.getStream(device_);
  if (no_link_) std::rethrow_exception(no_link_);
  const bool captured = capturing(current);
  TORCH_CHECK(link_ || !captured, "ringcomm: ", name(l.calls[0].collective), " of group '", group_->spec().name,
              "' is captured into a graph before the group ever had a tensor on ", device_,
              ": make one such call before the capture");
  set_up(set_up_until_ns);
  const c10::Stream stream = captured ? current : *stream_;
  const c10::StreamGuard on_stream(stream);

  // What throws here throws before anything is begun. Afterwards an error is the group's end: its ranks' slots no longer agree.
  DeviceWatch::process().start();
  std::vector<cuda::DeviceCall> calls = lower_all(l, programs, captured);
  const std::vector<Copy> copies = take_apart(l, calls);
  DeviceEventPtr begun;
  if (!captured) {
    c10::Event ready(device_.type());
    ready.record(current);
    ready.block(stream);
    begun = std::make_shared<c10::Event>(device_.type());
    begun->record(stream);
  }
  const std::vector<DeviceFlightPtr> flights = take_off(l, current, stream, begun, deadline_ns);
  if (flights.back()->over()) {  // the group has failed already
    for (const DeviceFlightPtr& f : flights) f->issued(false);
    return flights;
  }
  Error error;
  if (!enqueue(l, calls, copies, flights, error)) {
    fail_all(told(error));
    (void)failed(error);  // what came first
    std::rethrow_exception(exception_of(error));
  }
  if (captured)  // there is no end that could be waited for: it is in a graph
    for (const DeviceFlightPtr& f : flights) f->finish(nullptr, Cause::none);
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

// Stand-ins for inputs that an output would overwrite. One message that is cut up is never among them, so chunks are the call's own, in their order.
std::vector<DeviceSide::Copy> DeviceSide::take_apart(Launch& l, std::vector<cuda::DeviceCall>& calls) const {
  std::vector<Copy> copies;
  for (size_t i = 0; i < calls.size(); ++i) {
    Call& call = l.calls[i];
    separate(call, group_->spec().rank, l.keep, device_,
             [&](char* to, const char* from, size_t bytes) { copies.push_back({i, to, from, bytes}); });
    if (is_cut(call.collective)) continue;
    for (size_t k = 0; k < call.in.size(); ++k) calls[i].in[k].data = call.in[k].data;
  }
  return copies;
}

// Before anything is enqueued, so that the watch can end waits that fill the stream's queue and so hold up the host; and so that the tensors stay whatever happens.
std::vector<DeviceFlightPtr> DeviceSide::take_off(const Launch& l, c10::Stream issuer, c10::Stream stream,
                                                  const DeviceEventPtr& begun, int64_t deadline_ns) {
  std::vector<DeviceFlightPtr> flights;
  uint64_t sequence = sequence_.load();
  for (const Call& call : l.calls)
    flights.push_back(
        std::make_shared<DeviceFlight>(device_fingerprint(call, ++sequence), issuer, stream, begun, deadline_ns));
  std::vector<at::Tensor> used = l.keep;
  used.insert(used.end(), l.inputs.begin(), l.inputs.end());
  used.insert(used.end(), l.outputs.begin(), l.outputs.end());
  flights.back()->stash(std::move(used));
  Error error;
  const bool late = failed(error);
  if (!late && begun) {
    const std::lock_guard<std::mutex> hold(flights_mutex_);
    flights_.insert(flights_.end(), flights.begin(), flights.end());
    under_way_.store(static_cast<int>(flights_.size()));
  }
  sequence_.store(sequence);
  if (late) {
    flights.back()->unstash();
    for (const DeviceFlightPtr& f : flights) f->finish(exception_of(error), error.cause);
  } else if (begun) {
    DeviceWatch::process().add(shared_from_this());
  }
  return flights;
}

bool DeviceSide::enqueue(const Launch& l, const std::vector<cuda::DeviceCall>& calls, const std::vector<Copy>& copies,
                         const std::vector<DeviceFlightPtr>& flights, Error& error) {
  const auto stream = handle_of(flights.back()->stream);
  bool good = true;
  try {
    auto copy = copies.begin();
    for (size_t i = 0; good && i < calls.size(); ++i) {
      for (; good && copy != copies.end() && copy->call == i; ++copy)
        good = link_->runtime().copy(copy->to, copy->from, copy->bytes, stream, error);
      if (!flights[i]->captured()) link_->board().note(flights[i]->call.sequence, calls[i].tag);
      good = good && link_->devices().enqueue(calls[i], stream, error);
    }
    if (good) l.staged.copy_back();
    for (const DeviceFlightPtr& f : flights)
      if (good && !f->captured()) f->end.record(f->stream);
  } catch (const std::exception& e) {
    good = cuda::refuse(Cause::internal, sentence(e), error);
  }
  for (const DeviceFlightPtr& f : flights) f->issued(good);
  return good;
}

// ---------------------------------------------------------------------------------------------------------------- the end

void DeviceSide::leave_later() {
  leaves_.store(true);
  DeviceWatch::process().add(shared_from_this());
}

// Returns with the lock of issuing and nothing under way; or without, where that did not come about.
std::unique_lock<std::timed_mutex> DeviceSide::let_end(int64_t patience_ns, std::exception_ptr& raised) {
  std::unique_lock<std::timed_mutex> hold(issue_, std::defer_lock);
  const timespec nap{0, 500'000};
  int64_t until = now_ns() + patience_ns;
  bool gave_up = false;
  Error error;
  while (true) {
    if (!busy()) {
      if (hold.try_lock_for(std::chrono::milliseconds(1))) {
        if (!busy()) return hold;
        hold.unlock();
      } else if (now_ns() > until) {  // somebody is in a set-up
        return hold;
      }
    } else {
      if (!ended(error))
        until = now_ns() + patience_ns;
      else if (now_ns() > until)  // behind something of the caller's own
        return hold;
      nanosleep(&nap, nullptr);
    }
    if (gave_up || !signals_raise(raised)) continue;
    gave_up = true;
    cuda::refuse(Cause::aborted, "destroying it was interrupted with calls under way on " + device_.str(), error);
    if (busy()) fail_all(told(error));
  }
}

std::exception_ptr DeviceSide::close(int64_t patience_ns) {
  std::exception_ptr raised;
  const std::unique_lock<std::timed_mutex> hold = let_end(patience_ns, raised);
  if (!hold) return raised;
  Error error;
  cuda::refuse(Cause::aborted, "ringcomm: group '" + group_->spec().name + "' was destroyed on this rank", error);
  if (!no_link_) no_link_ = exception_of(error);
  std::unique_ptr<DeviceLink> link;
  {
    const std::lock_guard<std::mutex> asking(link_mutex_);
    link.swap(link_);
  }
  if (!link) return raised;
  const auto interrupted = [&raised] { return raised != nullptr || signals_raise(raised); };
  if (failed(error) || !link->close(now_ns() + patience_ns, interrupted))
    log(LogLevel::info, "devices: memory of group " + group_->spec().name +
                            " is kept until the process ends: not all ranks came to its end");
  return raised;
}

}  // namespace ringcomm
