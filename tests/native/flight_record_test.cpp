// The flight record: order and overwriting, states, many writers against a reader, and that groups which are gone are forgotten.
#include "engine/flight_record.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/flight_groups.h"

namespace ringcomm::test {
namespace {

// Every field says the same number, so that a reader can tell an entry put together from two.
FlightEntry entry(int64_t n) {
  FlightEntry e;
  e.created_ns = n + 1;
  e.timeout_ms = n;
  e.collective_seq = static_cast<uint64_t>(n);
  e.message_seq = static_cast<uint64_t>(n);
  e.peer = static_cast<int32_t>(n);
  for (FlightShape* shape : {&e.shapes.in, &e.shapes.out}) {
    shape->dims = FlightShape::kDims;
    for (int64_t& size : shape->sizes) size = n;
  }
  return e;
}

void check_whole(const FlightRecord::Read& e) {
  const int64_t n = e.timeout_ms;
  CHECK_EQ(e.created_ns, n + 1);
  CHECK_EQ(e.collective_seq, static_cast<uint64_t>(n));
  CHECK_EQ(e.message_seq, static_cast<uint64_t>(n));
  CHECK_EQ(e.peer, static_cast<int32_t>(n));
  for (const FlightShape* shape : {&e.shapes.in, &e.shapes.out})
    for (int64_t size : shape->sizes) CHECK_EQ(size, n);
}

void keeps_the_newest() {
  section("the newest entries are kept, oldest first");
  FlightRecord record(4);
  CHECK(record.read().empty());
  for (int64_t n = 0; n < 10; ++n) CHECK_EQ(record.add(entry(n)), static_cast<uint64_t>(n));
  const auto found = record.read();
  CHECK_EQ(found.size(), 4u);
  for (size_t i = 0; i < found.size(); ++i) {
    CHECK_EQ(found[i].id, 6 + i);
    check_whole(found[i]);
  }
}

void follows_states() {
  section("states only go forward, and never touch an entry that took the place");
  FlightRecord record(2);
  const uint64_t first = record.add(entry(5));
  const auto state = [&] { return record.read().front().state; };
  CHECK(state() == FlightState::scheduled && record.read()[0].started_ns == 0);
  record.started(first, 100);
  CHECK(state() == FlightState::started && record.read()[0].started_ns == 100);
  record.ended(first, 200, false);
  record.started(first, 300);
  record.ended(first, 400, true);
  CHECK(state() == FlightState::failed);  // one of several lanes may fail late
  CHECK_EQ(record.read()[0].started_ns, 100);
  record.add(entry(6));
  record.add(entry(7));  // where the first was
  record.started(first, 500);
  record.ended(first, 600, false);
  CHECK(record.read()[1].state == FlightState::scheduled && record.read()[1].ended_ns == 0);
}

void a_quick_end_has_a_start() {
  section("what ends at once started when it was issued");
  FlightRecord record(2);
  record.ended(record.add(entry(41)), 50, false);
  CHECK_EQ(record.read()[0].started_ns, 42);
  CHECK_EQ(record.read()[0].ended_ns, 50);
}

void is_whole_under_writers() {
  section("a reader never sees half an entry");
  FlightRecord record(64);
  std::atomic<bool> stop{false};
  const auto write = [&](int64_t n) {
    for (; !stop; n += 2) {
      const uint64_t id = record.add(entry(n & 0xfffff));
      record.started(id, 1);
      record.ended(id, 2, false);
    }
  };
  std::thread even(write, 0), odd(write, 1);
  size_t seen = 0;
  await("entries", [&] {
    for (const auto& e : record.read()) check_whole(e), ++seen;
    return seen > 20'000;
  });
  stop = true;
  even.join();
  odd.join();
}

void forgets_groups() {
  section("a group that is gone is forgotten when the record has nothing left of it");
  start_flight_record(8);
  const int kept = enter_flight_group({-1, "kept", "", 0, {0, 1}});
  for (int i = 0; i < 100; ++i) {
    const int group = enter_flight_group({-1, std::to_string(i), "", 0, {0, 1}});
    collective_record()->add(entry(i));
    message_record()->add(entry(i));
    leave_flight_group(group);
  }
  const auto groups = flight_groups();
  CHECK_EQ(groups.front().number, kept);
  CHECK_EQ(groups.back().name, "99");
  CHECK_EQ(groups.size(), 1u + 8 + 1);  // at the last entering, the eight before it still had entries; then it came
}

}  // namespace
}  // namespace ringcomm::test

int main() {
  using namespace ringcomm::test;
  start("flight_record_test", 120);
  keeps_the_newest();
  follows_states();
  a_quick_end_has_a_start();
  is_whole_under_writers();
  forgets_groups();
  return 0;
}
