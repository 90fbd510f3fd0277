#include "engine/flight_record.h"

#include <algorithm>
#include <cstring>

namespace ringcomm {
namespace {

static_assert(sizeof(FlightEntry) % sizeof(uint64_t) == 0 &&
              sizeof(FlightEntry) <= 3 * 64 - 8);  // three cache lines with the mark
constexpr size_t kStartedWord = offsetof(FlightEntry, started_ns) / 8, kEndedWord = offsetof(FlightEntry, ended_ns) / 8;
constexpr uint64_t kStates = 8, kWriting = 7;

// Leaked: threads may still call while the process exits.
std::atomic<FlightRecord*> collectives{nullptr}, messages{nullptr};

// Times that agree with the state. A request that ends in the drive that started it was marked once only.
void fit_times(FlightRecord::Read& e) {
  if (e.state == FlightState::scheduled) e.started_ns = 0;
  if (e.state < FlightState::completed) e.ended_ns = 0;
  if (e.state != FlightState::scheduled && e.started_ns == 0) e.started_ns = e.created_ns;
  if (e.state >= FlightState::completed && e.ended_ns == 0) e.ended_ns = e.started_ns;
}

}  // namespace

FlightShape FlightShape::flat(int64_t elements, int type) {
  FlightShape shape;
  shape.dims = 1;
  shape.sizes[0] = elements;
  shape.type = static_cast<int8_t>(type);
  return shape;
}

FlightRecord::FlightRecord(size_t capacity) : capacity_(capacity), slots_(new Slot[capacity]) {}

// Each word is released and acquired, not only the mark: a reader that sees one of these sees the claim, too, when it looks at the mark again.
uint64_t FlightRecord::add(const FlightEntry& entry) {
  uint64_t words[kWords];
  std::memcpy(words, &entry, sizeof words);
  const uint64_t id = next_.fetch_add(1, std::memory_order_relaxed);
  Slot& s = slot(id);
  uint64_t before = s.mark.load(std::memory_order_relaxed);
  do {
    if (before % kStates == kWriting || before / kStates > id + 1) return id;
  } while (!s.mark.compare_exchange_weak(before, (id + 1) * kStates + kWriting, std::memory_order_acquire,
                                         std::memory_order_relaxed));
  for (size_t i = 0; i < kWords; ++i) s.words[i].store(words[i], std::memory_order_release);
  const auto state = entry.started_ns ? FlightState::started : FlightState::scheduled;
  s.mark.store((id + 1) * kStates + static_cast<uint64_t>(state), std::memory_order_release);
  return id;
}

// False if the entry is another request's by now, or further on already.
bool FlightRecord::advance(uint64_t id, FlightState to) {
  std::atomic<uint64_t>& mark = slot(id).mark;
  uint64_t now = mark.load(std::memory_order_relaxed);
  do {
    if (now / kStates != id + 1 || now % kStates >= static_cast<uint64_t>(to)) return false;
  } while (!mark.compare_exchange_weak(now, (id + 1) * kStates + static_cast<uint64_t>(to), std::memory_order_release,
                                       std::memory_order_relaxed));
  return true;
}

// The mark first: it says whether the entry is still this request's. read() makes up for a time that is not there yet; of a thread held up in between for
// a whole round of the ring the next entry may have a wrong time, no more.
void FlightRecord::started(uint64_t id, int64_t ns) {
  if (advance(id, FlightState::started))
    slot(id).words[kStartedWord].store(static_cast<uint64_t>(ns), std::memory_order_relaxed);
}

void FlightRecord::ended(uint64_t id, int64_t ns, bool failed) {
  if (advance(id, failed ? FlightState::failed : FlightState::completed))
    slot(id).words[kEndedWord].store(static_cast<uint64_t>(ns), std::memory_order_relaxed);
}

std::vector<FlightRecord::Read> FlightRecord::read() const {
  const uint64_t end = next_.load(std::memory_order_acquire);
  std::vector<Read> found;
  for (uint64_t id = end > capacity_ ? end - capacity_ : 0; id < end; ++id) {
    const Slot& s = slot(id);
    const uint64_t before = s.mark.load(std::memory_order_acquire);
    if (before / kStates != id + 1 || before % kStates == kWriting) continue;
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = s.words[i].load(std::memory_order_acquire);
    if (s.mark.load(std::memory_order_relaxed) / kStates != id + 1) continue;
    Read entry;
    std::memcpy(static_cast<FlightEntry*>(&entry), words, sizeof words);
    entry.id = id;
    entry.state = static_cast<FlightState>(before % kStates);
    fit_times(entry);
    found.push_back(entry);
  }
  return found;
}

FlightRecord* collective_record() { return collectives.load(std::memory_order_acquire); }
FlightRecord* message_record() { return messages.load(std::memory_order_acquire); }

void start_flight_record(size_t capacity) {
  if (capacity == 0 || collective_record()) return;
  messages.store(new FlightRecord(capacity), std::memory_order_release);
  collectives.store(new FlightRecord(capacity), std::memory_order_release);
}

}  // namespace ringcomm
