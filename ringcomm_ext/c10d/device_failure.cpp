// What the watch does for a group: ends of calls, and what may go wrong with them.
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "c10d/device_side.h"
#include "c10d/work.h"
#include "core/log.h"
#include "engine/process.h"

namespace ringcomm {
namespace {

constexpr int64_t kBetweenNs = 20'000'000;  // looks for failures; guessed
constexpr int64_t kGraceNs = 500'000'000;   // a rank that has gone may have enqueued all that others wait for
constexpr int64_t kSliceNs = 1'000'000;     // of ending a stream's waits, so that other groups have their turn

}  // namespace

std::string sentence(const std::exception& e) {
  const auto* const torch = dynamic_cast<const c10::Error*>(&e);
  return torch ? torch->what_without_backtrace() : e.what();
}

// ---------------------------------------------------------------------------------------------------------------- ends

bool DeviceSide::ended(Error& error) {
  const std::lock_guard<std::mutex> hold(error_mutex_);
  if (error_) error = error_;
  return static_cast<bool>(error_);
}

bool DeviceSide::failed(Error& error) { return ended(error) || group_->failed(error); }

// A stream passes the end of a call also when its waits are ended, here or on another rank. But whoever does that has told all ranks why before: so what nobody has complained of by now is good.
bool DeviceSide::over(DeviceFlight& flight) {
  if (flight.over()) return true;
  Error error;
  {
    const std::lock_guard<std::mutex> hold(link_mutex_);
    if (!link_) return flight.over();  // closed, so everything is
    try {
      const cuda::BesideCaptures may_ask(link_->runtime(), error);
      if (may_ask && !flight.passed()) return flight.over();
    } catch (const std::exception& e) {  // the device itself has failed
      cuda::refuse(Cause::internal, sentence(e), error);
    }
    if (error)
      error = told(error);
    else
      (void)spoiled(flight, error);
  }
  if (error)
    fail_all(error);
  else
    flight.finish(nullptr, Cause::none);
  return true;
}

DeviceFlightPtr DeviceSide::oldest() {
  const std::lock_guard<std::mutex> hold(flights_mutex_);
  return flights_.empty() ? nullptr : flights_.front();
}

bool DeviceSide::look() {
  c10::OptionalDeviceGuard on;  // asking with another current device could make that one's context
  try {
    on.reset_device(device_);
  } catch (const std::exception&) {  // the device has failed: so the questions will say
  }
  Error error;
  {
    // Its questions must not end the captures of other threads.
    static thread_local bool beside_captures = false;
    const std::lock_guard<std::mutex> hold(link_mutex_);
    if (link_ && !beside_captures) beside_captures = link_->runtime().look_beside_captures(error);
  }
  if (error) fail_all(told(error));
  if (ended(error))
    empty_stream(error);
  else
    look_at_calls();
  if (under_way_.load() > 0) return true;
  if (leaves_.load()) {
    group_->leave(0, false);
    if (Engine* engine = process_engine()) engine->remove(group_.get());
    leaves_.store(false);
  }
  return false;
}

void DeviceSide::look_at_calls() {
  Error error;
  DeviceFlightPtr first;
  while ((first = oldest())) {
    if (!over(*first)) break;
    if (ended(error)) return;  // it stays until the stream is empty
    gone_since_ = 0;
    const std::lock_guard<std::mutex> hold(flights_mutex_);
    flights_.pop_front();  // by this thread only
    under_way_.store(static_cast<int>(flights_.size()));
  }
  if (!first || now_ns() < next_look_) return;
  next_look_ = now_ns() + kBetweenNs;
  bool found = false;
  {
    const std::lock_guard<std::mutex> hold(link_mutex_);
    try {
      found = find_failure(*first, error);
    } catch (const std::exception& e) {
      found = !cuda::refuse(Cause::internal, sentence(e), error);
      error = told(error);
    }
  }
  if (found) fail_all(error);
}

// Whatever waits in the stream is ended until there is nothing left, a slice at each look: only then are tensors let go. Calls that were being issued when the group failed are found
// here, too.
void DeviceSide::empty_stream(const Error& why) {
  size_t ready = 0;
  {
    std::vector<DeviceFlightPtr> all;
    {
      const std::lock_guard<std::mutex> hold(flights_mutex_);
      all.assign(flights_.begin(), flights_.end());
    }
    while (ready < all.size() && !all[ready]->being_issued()) ++ready;
    for (const DeviceFlightPtr& f : all) f->finish(exception_of(why), why.cause);
  }
  Error error;
  bool empty = true;
  {
    const std::lock_guard<std::mutex> hold(link_mutex_);
    if (link_ && stream_) empty = link_->devices().end(handle_of(*stream_), now_ns() + kSliceNs, error);
  }
  if (!empty && error.cause == Cause::timeout) return;
  if (!empty)
    log(LogLevel::warn, "devices: the stream of group " + group_->spec().name + " could not be drained: " + error.text);
  std::vector<DeviceFlightPtr> done;
  {
    const std::lock_guard<std::mutex> hold(flights_mutex_);
    done.assign(flights_.begin(), flights_.begin() + static_cast<std::ptrdiff_t>(ready));
    flights_.erase(flights_.begin(), flights_.begin() + static_cast<std::ptrdiff_t>(ready));
    under_way_.store(static_cast<int>(flights_.size()));
  }
  for (const DeviceFlightPtr& f : done) empty ? f->unstash() : f->keep_for_ever();
}

// All calls have failed before any waits are ended. Nothing can be enqueued once error_ is there; the watch empties the stream.
void DeviceSide::fail_all(const Error& error) {
  Error first = error;
  {
    const std::lock_guard<std::mutex> hold(error_mutex_);
    if (!error_) error_ = error;
    first = error_;
  }
  Error known;
  if (!group_->failed(known)) group_->fail(first);
  std::vector<DeviceFlightPtr> all;
  {
    const std::lock_guard<std::mutex> hold(flights_mutex_);
    all.assign(flights_.begin(), flights_.end());
  }
  for (const DeviceFlightPtr& f : all) f->finish(exception_of(first), first.cause);
}

// ---------------------------------------------------------------------------------------------------------------- what went wrong

bool DeviceSide::find_failure(const DeviceFlight& oldest, Error& error) {
  if (failed(error) || device_failed(error) || find_mismatch(error) || find_dead(oldest, error)) return true;
  if (now_ns() < oldest.deadline_ns) return false;
  return error = late(oldest), true;
}

bool DeviceSide::spoiled(const DeviceFlight& flight, Error& error) {
  return failed(error) || device_failed(error) || differs(flight, error);
}

bool DeviceSide::device_failed(Error& error) {
  Error found;
  return link_->devices().look(found) && (error = told(found), true);
}

Error DeviceSide::told(const Error& error) const {
  const GroupSpec& spec = group_->spec();
  Error whole = error;
  std::snprintf(whole.text, sizeof whole.text, "ringcomm: group '%s', %s: %.600s", spec.name.c_str(),
                group_->rank_name(spec.rank).c_str(), error.text);
  whole.reporter = spec.rank;
  return whole;
}

// Where ranks differ a call may end all the same, with rubbish; so it is looked at when it has ended, too. A rank that is more calls ahead than the board has entries is not seen.
bool DeviceSide::differs(const DeviceFlight& flight, Error& error) const {
  const DeviceBoard& board = link_->board();
  const Fingerprint& call = flight.call;
  for (int r = 0; r < board.ranks(); ++r) {
    if (r == group_->spec().rank || !board.differs(r, call.sequence, call.hash())) continue;
    cuda::refuse(Cause::mismatch,
                 "ringcomm: group '" + group_->spec().name + "', call " + std::to_string(call.sequence) +
                     " on devices: " + name(call.collective) + " of " + name(call.dtype) + ", " +
                     std::to_string(call.bytes) + " bytes on " + group_->rank_name(group_->spec().rank) + ", but " +
                     group_->rank_name(r) + " made another call there, or with another dtype, size, reduce op or root",
                 error);
    error.rank = r, error.reporter = group_->spec().rank;
    return true;
  }
  return false;
}

// Of all calls under way: with slots to spare a rank may be ahead.
bool DeviceSide::find_mismatch(Error& error) {
  std::vector<DeviceFlightPtr> flights;
  {
    const std::lock_guard<std::mutex> hold(flights_mutex_);
    flights.assign(flights_.begin(), flights_.end());
  }
  return std::any_of(flights.begin(), flights.end(), [&](const DeviceFlightPtr& f) { return differs(*f, error); });
}

// A rank that has left the group has done all that it was asked for: only what it was not asked for it will never do. One whose process has ended may have ended in the midst of a call, or
// behind it. Either may be a rank that this call does not wait for; so the call has its time, from when it has begun on the device.
bool DeviceSide::find_dead(const DeviceFlight& oldest, Error& error) {
  const GroupSpec& spec = group_->spec();
  for (int r = 0; r < spec.ranks; ++r) {
    if (r == spec.rank) continue;
    const bool left = spec.board.state(r) == RankState::left;
    const bool dead = spec.peers[static_cast<size_t>(r)].process->dead.load();
    if (!dead && !(left && link_->board().latest(r) < oldest.call.sequence)) continue;
    if (!oldest.begun->query()) return false;
    if (gone_since_ == 0) gone_since_ = now_ns();
    if (now_ns() - gone_since_ < kGraceNs) return false;
    cuda::refuse(left ? Cause::peer_left : Cause::peer_died,
                 "ringcomm: group '" + spec.name + "': " + group_->rank_name(r) +
                     (left ? " has left (it destroyed the group or ended)" : " died") + " while " +
                     group_->rank_name(spec.rank) + " waited in call " + std::to_string(oldest.call.sequence) +
                     " on devices (" + name(oldest.call.collective) + ")",
                 error);
    error.rank = r, error.reporter = spec.rank;
    return true;
  }
  return false;
}

Error DeviceSide::late(const DeviceFlight& oldest) const {
  const GroupSpec& spec = group_->spec();
  const DeviceBoard& board = link_->board();
  std::string who;
  Error error;
  int culprit = -1;
  for (int r = 0; r < spec.ranks; ++r) {
    if (board.latest(r) >= oldest.call.sequence) continue;
    if (culprit < 0) culprit = r;
    who += (who.empty() ? "" : ", ") + group_->rank_name(r) + " has made " + std::to_string(board.latest(r)) + " calls";
  }
  cuda::refuse(Cause::timeout,
               "ringcomm: Timed out after " + std::to_string((now_ns() - oldest.started_ns) / 1'000'000) +
                   " ms in call " + std::to_string(oldest.call.sequence) + " on devices (" +
                   name(oldest.call.collective) + " of " + name(oldest.call.dtype) + ") of group '" + spec.name +
                   "' on " + group_->rank_name(spec.rank) + ": " +
                   (who.empty() ? "all ranks have made it, and a device has not finished it" : who),
               error);
  error.rank = culprit, error.reporter = spec.rank;
  return error;
}

}  // namespace ringcomm
