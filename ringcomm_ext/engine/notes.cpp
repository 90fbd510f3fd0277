// What a group writes down as it goes: the flight record of its requests, a log line per call at DEBUG, the first failure.
#include <unistd.h>

#include <cstdio>

#include "core/log.h"
#include "engine/communicator.h"
#include "engine/flight_groups.h"

namespace ringcomm {
namespace {

int32_t this_thread() {
  static thread_local const auto id = static_cast<int32_t>(gettid());
  return id;
}

FlightShapes shapes_of(const Call& call) {
  int64_t in = 0, out = 0;
  for (const Chunk& c : call.in) in += static_cast<int64_t>(c.count);
  for (const Chunk& c : call.out) out += static_cast<int64_t>(c.count);
  return {FlightShape::flat(in), FlightShape::flat(out)};
}

FlightEntry entry_of(const Request& request, int group) {
  FlightEntry e;
  e.created_ns = request.started_ns;
  if (request.deadline_ns != kNoDeadline)
    e.timeout_ms = (request.deadline_ns - request.started_ns + 500'000) / 1'000'000;
  e.name = name(request.call.collective);
  e.group = group;
  e.thread = this_thread();
  return e;
}

}  // namespace

void Communicator::enter_record(const std::string& description) {
  if (!collective_record()) return;
  FlightGroup group;
  group.name = spec_.name;
  group.description = description;
  group.rank = spec_.rank;
  for (const PeerInfo& p : spec_.peers) group.ranks.push_back(p.global_rank);
  flight_group_ = enter_flight_group(std::move(group));
}

void Communicator::leave_record() {
  if (const int group = flight_group_.exchange(-1); group >= 0) leave_flight_group(group);
}

void Communicator::record(const Call& call, Request& request) {
  FlightRecord* const record = collective_record();
  const int group = flight_group_.load(std::memory_order_relaxed);
  if (!record || group < 0) return;
  FlightEntry e = entry_of(request, group);
  e.collective_seq = request.call.sequence;
  e.shapes = call.shapes ? *call.shapes : shapes_of(call);
  request.flight = record;
  request.flight_id = record->add(e);
}

// A message counts as started from its issue: what its other end has done is not known here.
void Communicator::record(const Message& message, const FlightShapes* shapes, Request& request) {
  FlightRecord* const record = message_record();
  const int group = flight_group_.load(std::memory_order_relaxed);
  if (!record || group < 0) return;
  FlightEntry e = entry_of(request, group);
  e.started_ns = e.created_ns;
  e.collective_seq = sequence_.load(std::memory_order_relaxed);
  e.message_seq = messages_.fetch_add(1, std::memory_order_relaxed) + 1;
  e.peer = message.peer;
  const auto bytes = FlightShape::flat(static_cast<int64_t>(message.bytes));
  e.shapes = shapes ? *shapes : FlightShapes{bytes, bytes};
  request.flight = record;
  request.flight_id = record->add(e);
}

// ---------------------------------------------------------------------------------------------------------------- log

void Communicator::log_issue(const Request& request, const Rule* rule) const {
  std::string line = "issue: " + call_text(request.call) + " of group '" + spec_.name + "'";
  if (rule) line += " by " + rule->schedule;
  log(LogLevel::debug, line);
}

void Communicator::log_end(const Request& request) const {
  char time[48];
  std::snprintf(time, sizeof time, " after %.1f us", (request.ended_ns() - request.started_ns) * 1e-3);
  log(LogLevel::debug, std::string(request.error() ? "failed: " : "end: ") + call_text(request.call) + " of group '" +
                           spec_.name + "'" + time);
}

// Before anybody in this process sees the failure: whoever comes second waits until the first has written. With no lane held.
void Communicator::note_failure() {
  std::call_once(failure_noted_, [this] {
    Error error;
    if (board_.read_error(error)) log(LogLevel::info, "group '" + spec_.name + "' failed: " + error.text);
    if (spec_.on_failure) spec_.on_failure();
  });
}

void Communicator::look_at_board() {
  if (spec_.on_failure && board_.failed()) note_failure();
}

}  // namespace ringcomm
