#include "engine/flight_groups.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "engine/flight_record.h"

namespace ringcomm {
namespace {

struct Known {
  FlightGroup group;
  uint64_t collectives_end = 0, messages_end = 0;  // where the records stood when it was gone
};

struct Registry {  // leaked: groups may end while the process exits
  std::mutex mutex;
  std::vector<Known> known;
  int next = 0;
};
Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

bool overwritten(const FlightRecord* record, uint64_t end) {
  return !record || record->next() - end >= record->capacity();
}

bool forgettable(const Known& k) {
  return k.group.gone && overwritten(collective_record(), k.collectives_end) &&
         overwritten(message_record(), k.messages_end);
}

}  // namespace

int enter_flight_group(FlightGroup group) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> hold(r.mutex);
  r.known.erase(std::remove_if(r.known.begin(), r.known.end(), forgettable), r.known.end());
  group.number = r.next++;
  r.known.push_back({std::move(group)});
  return r.known.back().group.number;
}

void leave_flight_group(int number) {
  Registry& r = registry();
  const std::lock_guard<std::mutex> hold(r.mutex);
  for (Known& k : r.known) {
    if (k.group.number != number) continue;
    k.group.gone = true;
    k.collectives_end = collective_record() ? collective_record()->next() : 0;
    k.messages_end = message_record() ? message_record()->next() : 0;
  }
}

std::vector<FlightGroup> flight_groups() {
  Registry& r = registry();
  const std::lock_guard<std::mutex> hold(r.mutex);
  std::vector<FlightGroup> groups;
  for (const Known& k : r.known) groups.push_back(k.group);
  return groups;
}

}  // namespace ringcomm
