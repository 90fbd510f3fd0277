// What the watch does for a group: ends of calls, and what may go wrong with them.
#include <algorithm>

#include "c10d/device_side.h"
#include "c10d/work.h"
#include "core/log.h"

namespace ringcomm {
namespace {

constexpr int64_t kBetweenNs = 20'000'000;    // looks for failures; guessed
constexpr int64_t kGraceNs = 500'000'000;     // a rank that died may have enqueued all that others wait for
constexpr int64_t kDrainNs = 10'000'000'000;  // for a stream whose waits have been ended

}  // namespace

bool DeviceSide::failed(Error& error) {
  {
    const std::lock_guard<std::mutex> hold(error_mutex_);
    if (error_) return error = error_, true;
  }
  return group_->failed(error);
}

bool DeviceSide::look() {
  Error error;
  // Its questions must not end the captures of other threads.
  static thread_local bool beside_captures = false;
  if (!beside_captures && !(beside_captures = link_->runtime().look_beside_captures(error))) {
    fail_all(error);
    return busy();
  }
  while (true) {
    DeviceFlightPtr oldest;
    {
      const std::lock_guard<std::mutex> hold(flights_mutex_);
      if (flights_.empty()) return false;
      oldest = flights_.front();
    }
    bool done = false;
    try {
      done = oldest->done();
    } catch (const std::exception& e) {  // the device itself has failed
      cuda::refuse(Cause::internal, std::string("ringcomm: ") + e.what(), error);
      fail_all(error);
      return busy();
    }
    if (!done) break;
    dead_since_ = 0;
    if (differs(*oldest, error)) {
      fail_all(error);
      return busy();
    }
    oldest->finish(nullptr, Cause::none, true);
    const std::lock_guard<std::mutex> hold(flights_mutex_);
    if (!flights_.empty() && flights_.front() == oldest) flights_.pop_front();
    under_way_.store(static_cast<int>(flights_.size()));
  }
  if (now_ns() < next_look_) return true;
  next_look_ = now_ns() + kBetweenNs;
  DeviceFlightPtr oldest;
  {
    const std::lock_guard<std::mutex> hold(flights_mutex_);
    if (flights_.empty()) return false;
    oldest = flights_.front();
  }
  if (find_failure(*oldest, error)) fail_all(error);
  return busy();
}

bool DeviceSide::find_failure(const DeviceFlight& oldest, Error& error) {
  if (failed(error)) return true;
  if (link_->devices().look(error)) {
    Error whole = error;
    std::snprintf(whole.text, sizeof whole.text, "ringcomm: group '%s': %.600s", group_->spec().name.c_str(),
                  error.text);
    return error = whole, true;
  }
  if (find_mismatch(error) || find_dead(oldest, error)) return true;
  if (now_ns() < oldest.deadline_ns) return false;
  return error = late(oldest), true;
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

bool DeviceSide::find_dead(const DeviceFlight& oldest, Error& error) {
  const GroupSpec& spec = group_->spec();
  for (int r = 0; r < spec.ranks; ++r) {
    if (!spec.peers[static_cast<size_t>(r)].process->dead.load()) continue;
    if (dead_since_ == 0) dead_since_ = now_ns();
    if (now_ns() - dead_since_ < kGraceNs) return false;
    cuda::refuse(Cause::peer_died,
                 "ringcomm: group '" + spec.name + "': " + group_->rank_name(r) + " died while " +
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

// Nothing can be enqueued once error_ is there; what is there already is drained.
void DeviceSide::fail_all(const Error& error) {
  {
    const std::lock_guard<std::mutex> hold(error_mutex_);
    if (!error_) error_ = error;
  }
  Error known;
  if (!group_->failed(known)) group_->fail(error);
  Error drained;
  const bool empty = !stream_ || link_->devices().end(handle_of(*stream_), now_ns() + kDrainNs, drained);
  if (!empty)
    log(LogLevel::warn,
        "devices: the stream of group " + group_->spec().name + " could not be drained: " + drained.text);
  std::deque<DeviceFlightPtr> flights;
  {
    const std::lock_guard<std::mutex> hold(flights_mutex_);
    flights.swap(flights_);
    under_way_.store(0);
  }
  const std::exception_ptr failure = exception_of(error);
  for (const DeviceFlightPtr& f : flights) f->finish(failure, error.cause, empty);
}

}  // namespace ringcomm
