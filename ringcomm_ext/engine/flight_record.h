// What this process called last: a ring of fixed entries in memory, written when a request is issued, starts and ends, read when something is wrong.
// c10d/flight_dump.h turns it into the file that torch's analyser reads.
//
// Threads: any, without a lock. A writer takes a number (the one shared counter), claims the entry of that number, fills it and publishes it; a reader
// takes what it finds published before and after copying. Nobody waits: a writer that finds the entry claimed still, because another thread was held up
// in those nanoseconds for a whole round of the ring, leaves its own call out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace ringcomm {

// Sizes of one argument. More dimensions than fit, and lists of unequal tensors, are recorded as their number of elements.
struct FlightShape {
  static constexpr int kDims = 6;
  int64_t sizes[kDims] = {};
  int8_t dims = -1;  // -1: the call has no such argument
  int8_t type = -1;  // torch's number of the element type; -1: unknown

  static FlightShape flat(int64_t elements, int type = -1);
};

struct FlightShapes {
  FlightShape in, out;
};

enum class FlightState : uint64_t { scheduled = 0, started = 1, completed = 2, failed = 3 };

// One request. Times are now_ns() time, 0: not yet.
struct FlightEntry {
  int64_t created_ns = 0, started_ns = 0, ended_ns = 0;
  int64_t timeout_ms = 0;       // what is left of it at issue; 0: none
  uint64_t collective_seq = 0;  // of the group: this collective, or the last one before this message
  uint64_t message_seq = 0;     // of the group: this message, 0 for collectives
  const char* name = nullptr;   // "all_reduce": static text
  int32_t group = -1;           // number in flight_groups.h
  int32_t peer = -1;            // the other rank of a message, in the group; -1: any
  int32_t thread = 0;           // that issued it
  FlightShapes shapes;
};

class FlightRecord {
 public:
  struct Read : FlightEntry {
    uint64_t id = 0;  // counts all entries since the start of the process
    FlightState state = FlightState::scheduled;
  };

  explicit FlightRecord(size_t capacity);
  size_t capacity() const { return capacity_; }
  uint64_t next() const { return next_.load(std::memory_order_relaxed); }

  // Returns the entry's id, by which its request tells how it goes on. Ids that have been overwritten are ignored.
  uint64_t add(const FlightEntry& entry);
  void started(uint64_t id, int64_t ns);
  void ended(uint64_t id, int64_t ns, bool failed);

  std::vector<Read> read() const;  // oldest first

 private:
  static constexpr size_t kWords = sizeof(FlightEntry) / sizeof(uint64_t);
  struct alignas(64) Slot {
    std::atomic<uint64_t> mark{0};  // 0: never written; else (id + 1) * 8 + state, or + kWriting
    std::atomic<uint64_t> words[kWords];
  };
  Slot& slot(uint64_t id) const { return slots_[id % capacity_]; }
  bool advance(uint64_t id, FlightState to);

  const size_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> next_{0};
};

// The process's records; null while off. Messages have their own, so that a burst of them does not push out the collectives.
FlightRecord* collective_record();
FlightRecord* message_record();
// Entries of each; 0: off. Once, before the first group; later calls are ignored.
void start_flight_record(size_t capacity);

}  // namespace ringcomm
