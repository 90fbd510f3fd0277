#include "c10d/flight_dump.h"

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <vector>

#include "core/log.h"
#include "core/status.h"
#include "engine/flight_groups.h"
#include "engine/flight_record.h"

namespace ringcomm {
namespace {

using c10::IValue;
using Entry = FlightRecord::Read;

// Of torch's format, not ours. The analyser refuses names of backends it has not heard of, so calls stand under the one that is most alike.
constexpr const char* kFormat = "2.10";
constexpr const char* kNamedAs = "gloo:";

std::atomic<int> job_rank{0};

c10::Dict<IValue, IValue> new_dict() { return c10::Dict<IValue, IValue>(c10::AnyType::get(), c10::AnyType::get()); }
c10::List<IValue> new_list() { return c10::List<IValue>(c10::AnyType::get()); }

// Added to now_ns() it gives the time of day.
int64_t time_of_day_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec - now_ns();
}

std::string thread_name(int thread) {
  char text[32] = {};
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/comm";
  if (std::FILE* f = std::fopen(path.c_str(), "re")) {
    if (std::fgets(text, sizeof text, f)) text[std::strcspn(text, "\n")] = 0;
    std::fclose(f);
  }
  return text;
}

IValue sizes_of(const FlightShape& shape) {
  auto arguments = new_list();
  if (shape.dims < 0) return arguments;
  auto sizes = new_list();
  for (int i = 0; i < shape.dims; ++i) sizes.push_back(shape.sizes[i]);
  arguments.push_back(sizes);
  return arguments;
}

IValue types_of(const FlightShape& shape) {
  auto types = new_list();
  if (shape.dims >= 0) types.push_back(shape.type < 0 ? "" : c10::toString(static_cast<c10::ScalarType>(shape.type)));
  return types;
}

std::string title(const Entry& e, const FlightGroup& group) {
  std::string text = std::string(kNamedAs) + e.name;
  if (e.message_seq == 0) return text;
  const char* const arrow = std::strcmp(e.name, "send") == 0 ? "->" : "<-";
  return text + " " + std::to_string(group.rank) + arrow + std::to_string(e.peer);
}

const char* state_name(FlightState state) {
  switch (state) {
    case FlightState::scheduled:
      return "scheduled";
    case FlightState::completed:
      return "completed";
    default:  // what failed had begun and did not complete
      return "started";
  }
}

IValue time_or_none(int64_t ns, int64_t shift) { return ns ? IValue(ns + shift) : IValue(); }

IValue entry_dict(const Entry& e, const FlightGroup& group, uint64_t id, int64_t shift) {
  const bool completed = e.state == FlightState::completed;
  auto d = new_dict();
  d.insert("record_id", static_cast<int64_t>(id));
  d.insert("pg_id", int64_t{e.group});
  d.insert("process_group", std::make_tuple(group.name, group.description));
  d.insert("collective_seq_id", static_cast<int64_t>(e.collective_seq));
  d.insert("p2p_seq_id", static_cast<int64_t>(e.message_seq));
  d.insert("op_id", static_cast<int64_t>(e.collective_seq + e.message_seq));
  d.insert("profiling_name", title(e, group));
  d.insert("thread_id", std::to_string(e.thread));
  d.insert("thread_name", thread_name(e.thread));
  d.insert("input_sizes", sizes_of(e.shapes.in));
  d.insert("input_dtypes", types_of(e.shapes.in));
  d.insert("output_sizes", sizes_of(e.shapes.out));
  d.insert("output_dtypes", types_of(e.shapes.out));
  d.insert("time_created_ns", e.created_ns + shift);
  d.insert("time_discovered_started_ns", time_or_none(e.started_ns, shift));
  d.insert("time_discovered_completed_ns", time_or_none(completed ? e.ended_ns : 0, shift));
  if (completed) d.insert("duration_ms", (e.ended_ns - e.started_ns) * 1e-6);
  d.insert("state", state_name(e.state));
  d.insert("retired", e.state >= FlightState::completed);
  d.insert("timeout_ms", e.timeout_ms);
  d.insert("is_p2p", e.message_seq > 0);
  d.insert("frames", new_list());
  return d;
}

// Those an entry may stand for: a group that is gone and whose name was taken again would be confused with its successor, by name and number of the call.
std::map<int, FlightGroup> groups_by_number() {
  std::map<int, FlightGroup> groups;
  std::map<std::string, int> latest;
  for (FlightGroup& g : flight_groups()) {
    const auto before = latest.find(g.name);
    if (before != latest.end() && groups.at(before->second).gone) groups.erase(before->second);
    latest[g.name] = g.number;
    groups.emplace(g.number, std::move(g));
  }
  return groups;
}

std::vector<Entry> entries_of(const FlightRecord* record, const std::map<int, FlightGroup>& groups) {
  std::vector<Entry> entries = record ? record->read() : std::vector<Entry>{};
  const auto unknown = [&](const Entry& e) { return groups.count(e.group) == 0; };
  entries.erase(std::remove_if(entries.begin(), entries.end(), unknown), entries.end());
  return entries;
}

IValue list_of(const std::vector<Entry>& entries, const std::map<int, FlightGroup>& groups, bool renumber) {
  const int64_t shift = time_of_day_ns();
  auto list = new_list();
  for (size_t i = 0; i < entries.size(); ++i)
    list.push_back(entry_dict(entries[i], groups.at(entries[i].group), renumber ? i : entries[i].id, shift));
  return list;
}

IValue group_dict(const FlightGroup& group) {
  std::string ranks;
  for (int r : group.ranks) ranks += (ranks.empty() ? "[" : ", ") + std::to_string(r);
  auto d = new_dict();
  d.insert("name", group.name);
  d.insert("desc", group.description);
  d.insert("ranks", ranks + "]");
  return d;
}

// The last collective of each group that was issued, started, completed, as far as the record reaches back; -1: none.
IValue status_of(const std::vector<Entry>& collectives, const std::map<int, FlightGroup>& groups) {
  auto all = new_dict();
  for (const auto& [number, group] : groups) {
    int64_t last[3] = {-1, -1, -1};
    for (const Entry& e : collectives) {
      if (e.group != number) continue;
      const int reached = e.state == FlightState::scheduled ? 0 : e.state == FlightState::completed ? 2 : 1;
      for (int i = 0; i <= reached; ++i) last[i] = std::max(last[i], static_cast<int64_t>(e.collective_seq));
    }
    auto d = new_dict();
    d.insert("last_enqueued_collective", last[0]);
    d.insert("last_started_collective", last[1]);
    d.insert("last_completed_collective", last[2]);
    all.insert(std::to_string(number), d);
  }
  return all;
}

std::string pickled(const IValue& value) {
  std::string bytes;
  torch::jit::Pickler pickler([&bytes](const char* data, size_t size) { bytes.append(data, size); }, nullptr, nullptr,
                              nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  return bytes;
}

}  // namespace

void set_flight_rank(int rank) { job_rank = rank; }
int flight_rank() { return job_rank.load(); }

std::string pickled_flight_record(bool messages_too) {
  const auto groups = groups_by_number();
  std::vector<Entry> collectives = entries_of(collective_record(), groups);
  std::vector<Entry> messages = entries_of(message_record(), groups);
  auto config = new_dict(), all = new_dict();
  for (const auto& [number, group] : groups) config.insert(group.name, group_dict(group));
  all.insert("version", kFormat);
  all.insert("pg_config", config);
  all.insert("comm_lib_version", "ringcomm");
  all.insert("pg_status", status_of(collectives, groups));
  all.insert("rank", int64_t{flight_rank()});
  if (messages_too) {
    collectives.insert(collectives.end(), messages.begin(), messages.end());
    std::stable_sort(collectives.begin(), collectives.end(),
                     [](const Entry& a, const Entry& b) { return a.created_ns < b.created_ns; });
    messages.clear();
  }
  all.insert("entries", list_of(collectives, groups, messages_too));
  all.insert("messages", list_of(messages, groups, false));
  return pickled(all);
}

bool write_flight_record(const std::string& prefix, std::string& error) {
  static std::mutex one_at_a_time;  // groups may fail together
  const std::lock_guard<std::mutex> hold(one_at_a_time);
  const std::string path = prefix + std::to_string(flight_rank()), fresh = path + ".tmp",
                    bytes = pickled_flight_record(false);
  std::FILE* f = std::fopen(fresh.c_str(), "we");
  bool ok = f && std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size();
  if (f) ok &= std::fclose(f) == 0;
  ok = ok && std::rename(fresh.c_str(), path.c_str()) == 0;
  if (!ok) error = "the flight record cannot be written to " + path + ": " + std::strerror(errno);
  return ok;
}

void write_flight_record_on_failure(const std::string& prefix) {
  std::string error;
  if (write_flight_record(prefix, error))
    log(LogLevel::info, "flight record written to " + prefix + std::to_string(flight_rank()));
  else
    log(LogLevel::warn, error);
}

}  // namespace ringcomm
