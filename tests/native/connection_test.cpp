// The contract of Sender and Receiver (docs/connections.md), written once, run over every kind of connection.
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kinds.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

char* room(Sender& to, size_t bytes) {
  return await("room", [&] { return to.reserve(bytes); });
}

// By turns written in place and handed to the connection to copy.
void put(Sender& to, size_t bytes, uint64_t stream, uint64_t k) {
  char* place = room(to, bytes);
  if (k % 2) {
    fill(place, bytes, stream, k);
  } else {
    std::string data(bytes, '\0');
    fill(data.data(), bytes, stream, k);
    to.fill(place, data.data(), bytes);
  }
  to.publish(static_cast<uint32_t>(k));
}

void take(Receiver& from, size_t bytes, uint64_t stream, uint64_t k) {
  uint32_t tag = 0;
  const char* data = await("a message", [&] { return from.peek(bytes, &tag); });
  CHECK_EQ(tag, static_cast<uint32_t>(k));
  CHECK(holds(data, bytes, stream, k));
  CHECK(from.peek(bytes, &tag) == data);  // stays until released
  from.release();
}

// Puts until there is no room, which must come; gives how many went in. `first`: the number of the first.
uint64_t put_until_full(Sender& to, size_t bytes, uint64_t stream, uint64_t first = 0) {
  for (uint64_t k = first; k < 100'000; ++k) {
    char* place = to.reserve(bytes);
    if (!place) {
      usleep(20'000);  // a wire may be busy; a full connection stays full
      place = to.reserve(bytes);
    }
    if (!place) return k - first;
    fill(place, bytes, stream, k);
    to.publish(static_cast<uint32_t>(k));
  }
  fail("a connection", 0, "is never full");
}

void reserve_twice(const Kind& kind) {
  auto world = kind.make({});
  Sender& to = *world->rank(0).sender(ConnectionKind::pair, 0, 1);
  Receiver& from = *world->rank(1).receiver(ConnectionKind::pair, 0, 0);
  uint32_t tag = 0;
  CHECK(from.peek(8, &tag) == nullptr);
  for (size_t bytes : {size_t{8}, size_t{4096}}) {
    char* place = room(to, bytes);
    CHECK(to.reserve(bytes) == place);
    CHECK(from.peek(bytes, &tag) == nullptr);  // nothing is seen before publish
    fill(place, bytes, 1, bytes);
    to.publish(static_cast<uint32_t>(bytes));
    take(from, bytes, 1, bytes);
  }
}

// The same objects are given out for the same ends.
void made_once(const Kind& kind) {
  auto world = kind.make({});
  Connections& c = world->rank(0);
  for (auto k : {ConnectionKind::pair, ConnectionKind::fan_out}) {
    CHECK(c.sender(k, 0, 1) == c.sender(k, 0, 1));
    CHECK(c.receiver(k, 0, 1) == c.receiver(k, 0, 1));
    CHECK(c.sender(k, 0, 1)->capacity() >= 4096);
    CHECK_EQ(c.receiver(k, 0, 1)->capacity(), world->rank(1).sender(k, 0, 0)->capacity());
    CHECK_EQ(c.receiver(k, 0, 1)->peer(), 1);
  }
  CHECK(c.message_sender(1) == c.message_sender(1));
  CHECK_EQ(c.message_receiver(1)->peer(), 1);
  CHECK_EQ(std::string(c.kind()), std::string(kind.name));
}

// Every size from nothing to the capacity arrives, most of all around the border between line and slot.
void sizes(const Kind& kind) {
  auto world = kind.make({});
  Sender& to = *world->rank(0).sender(ConnectionKind::pair, 0, 1);
  Receiver& from = *world->rank(1).receiver(ConnectionKind::pair, 0, 0);
  std::vector<size_t> all;
  for (size_t bytes = 0; bytes <= 70; ++bytes) all.push_back(bytes);
  for (size_t bytes : {127, 128, 1000, 4095, 4096}) all.push_back(bytes);
  for (size_t bytes : {56, 57, 56, 4096, 55, 57, 0}) all.push_back(bytes);
  for (size_t k = 0; k < all.size(); ++k) {
    put(to, all[k], 2, k);
    take(from, all[k], 2, k);
    from.flush();
  }
}

void full(const Kind& kind) {
  for (size_t bytes : {size_t{8}, size_t{300}}) {
    auto world = kind.make({});
    Sender& to = *world->rank(0).sender(ConnectionKind::pair, 0, 1);
    Receiver& from = *world->rank(1).receiver(ConnectionKind::pair, 0, 0);
    const uint64_t fit = put_until_full(to, bytes, 3);
    CHECK(fit >= 4);  // as many as the FIFO has slots, without any doing of the reader
    CHECK_EQ(to.waits_for(), 1);
    CHECK(to.error() == nullptr);
    for (uint64_t k = 0; k < fit; ++k) take(from, bytes, 3, k);
    from.flush();
    for (uint64_t k = 0; k < 4; ++k) put(to, bytes, 4, k);  // all of it is free again
    for (uint64_t k = 0; k < 4; ++k) take(from, bytes, 4, k);
    uint32_t tag = 0;
    CHECK(from.peek(bytes, &tag) == nullptr);
    CHECK(from.error() == nullptr);
  }
}

// The writer is held up by the slowest reader alone, names it, and every reader sees every slot.
void fan_out(const Kind& kind) {
  auto world = kind.make({4});
  Sender& to = *world->rank(1).sender(ConnectionKind::fan_out, 0, -1);
  std::vector<Receiver*> readers;
  for (int r : {0, 2, 3}) readers.push_back(world->rank(r).receiver(ConnectionKind::fan_out, 0, 1));
  uint64_t fit = 0;
  // Until all but one are through and there is no room: with different wires behind it, it may have been full for another reader's sake.
  for (uint64_t more = 1; more > 0; fit += more) {
    more = put_until_full(to, 100, 5, fit);
    CHECK(fit > 0 || more >= 4);
    for (Receiver* reader : {readers[0], readers[2]}) {
      for (uint64_t k = fit; k < fit + more; ++k) take(*reader, 100, 5, k);
      reader->flush();
    }
  }
  CHECK_EQ(to.waits_for(), 2);
  for (uint64_t k = 0; k < fit; ++k) take(*readers[1], 100, 5, k);
  readers[1]->flush();
  put(to, 100, 5, fit);
  for (Receiver* reader : readers) take(*reader, 100, 5, fit);
}

// A full connection holds up nobody else: other peers, channels, directions, kinds and messages go on.
void independent(const Kind& kind) {
  auto world = kind.make({3, 2});
  Connections &a = world->rank(0), &b = world->rank(1), &c = world->rank(2);
  const uint64_t stuck = put_until_full(*a.sender(ConnectionKind::pair, 0, 1), 200, 1);
  const auto passes = [](Sender* to, std::vector<Receiver*> readers, uint64_t stream) {
    for (uint64_t k = 0; k < 20; ++k) {
      const size_t bytes = k % 2 ? 8 : 600;
      put(*to, bytes, stream, k);
      for (Receiver* from : readers) take(*from, bytes, stream, k), from->flush();
    }
  };
  passes(a.sender(ConnectionKind::pair, 1, 1), {b.receiver(ConnectionKind::pair, 1, 0)}, 2);
  passes(a.sender(ConnectionKind::pair, 0, 2), {c.receiver(ConnectionKind::pair, 0, 0)}, 3);
  passes(b.sender(ConnectionKind::pair, 0, 0), {a.receiver(ConnectionKind::pair, 0, 1)}, 4);
  passes(a.sender(ConnectionKind::fan_out, 0, -1),
         {b.receiver(ConnectionKind::fan_out, 0, 0), c.receiver(ConnectionKind::fan_out, 0, 0)}, 5);
  passes(a.sender(ConnectionKind::fan_out, 1, -1),
         {b.receiver(ConnectionKind::fan_out, 1, 0), c.receiver(ConnectionKind::fan_out, 1, 0)}, 6);
  passes(a.message_sender(1), {b.message_receiver(0)}, 7);
  passes(b.message_sender(0), {a.message_receiver(1)}, 8);
  for (uint64_t k = 0; k < stuck; ++k)
    take(*b.receiver(ConnectionKind::pair, 0, 0), 200, 1, k);  // nothing of it was lost
}

size_t size_of(uint64_t k) {
  Random r(k);
  return r.one_in(3) ? r.below(4097) : 50 + r.below(12);
}

void write_stream(Sender& to, uint64_t stream, uint64_t messages) {
  for (uint64_t k = 0; k < messages; ++k) put(to, size_of(k), stream, k);
}

// Flushes when it must (before it gives up for want of a message) and now and then.
void read_stream(Receiver& from, uint64_t stream, uint64_t messages) {
  Random r(stream);
  for (uint64_t k = 0; k < messages; ++k) {
    uint32_t tag = 0;
    if (!from.peek(size_of(k), &tag)) from.flush();
    take(from, size_of(k), stream, k);
    if (r.one_in(4)) from.flush();
  }
  from.flush();
}

// All ends at once, each on its own thread.
void streams(const Kind& kind) {
  constexpr uint64_t kMessages = 1500;
  auto world = kind.make({3, 1, 3});
  std::vector<std::thread> threads;
  const auto run = [&](Sender* to, std::vector<Receiver*> readers, uint64_t stream) {
    threads.emplace_back([=] { write_stream(*to, stream, kMessages); });
    for (Receiver* from : readers) threads.emplace_back([=] { read_stream(*from, stream, kMessages); });
  };
  Connections &a = world->rank(0), &b = world->rank(1), &c = world->rank(2);
  run(a.sender(ConnectionKind::pair, 0, 1), {b.receiver(ConnectionKind::pair, 0, 0)}, 1);
  run(b.sender(ConnectionKind::pair, 0, 0), {a.receiver(ConnectionKind::pair, 0, 1)}, 2);
  run(c.sender(ConnectionKind::fan_out, 0, -1),
      {a.receiver(ConnectionKind::fan_out, 0, 2), b.receiver(ConnectionKind::fan_out, 0, 2)}, 3);
  run(a.message_sender(2), {c.message_receiver(0)}, 4);
  for (std::thread& t : threads) t.join();
}

// A writer can wait until all has been read, and who has not read is named.
void settled(const Kind& kind) {
  auto world = kind.make({3});
  Sender& to = *world->rank(0).sender(ConnectionKind::fan_out, 0, -1);
  Receiver* const readers[] = {world->rank(1).receiver(ConnectionKind::fan_out, 0, 0),
                               world->rank(2).receiver(ConnectionKind::fan_out, 0, 0)};
  CHECK(to.settled());
  for (uint64_t k = 0; k < 30; ++k) {
    const size_t bytes = k % 3 ? 8 : 900;
    put(to, bytes, 8, k);
    CHECK(!to.settled());
    for (Receiver* from : readers) take(*from, bytes, 8, k);
    CHECK(!to.settled());  // released is not flushed
    readers[0]->flush();
    await("the first reader", [&] { return to.settled(), to.waits_for() == 2; });
    readers[1]->flush();
    await("the readers", [&] { return to.settled(); });
    CHECK(to.returned());
  }
}

// Slots cost memory; where there is none the connection is broken for good and names the key that limits it.
void no_memory(const Kind& kind) {
  auto world = kind.make({2, 1, 4, 1 << 20, 1 << 20, 1 << 20, 64 << 10});
  for (Sender* to : {world->rank(0).sender(ConnectionKind::pair, 0, 1),
                     world->rank(0).sender(ConnectionKind::fan_out, 0, -1), world->rank(0).message_sender(1)}) {
    CHECK(to->reserve(8) != nullptr);  // up to 56 bytes need no slot
    CHECK(to->reserve(56) != nullptr);
    CHECK(to->error() == nullptr);
    CHECK(to->reserve(57) == nullptr);
    CHECK(to->error() != nullptr);
    CHECK(to->error()->cause == Cause::no_memory);
    CHECK_CONTAINS(to->error()->text, "memory.limit");
    CHECK(to->reserve(1 << 20) == nullptr);
    CHECK(to->reserve(8) == nullptr);
  }
}

// Registered memory goes without a copy and is the writer's again when all readers are through; all else cannot be lent.
void lending(const Kind& kind) {
  auto world = kind.make({3, 1, 4, 4096, 4096, 4096, 64 << 10});
  constexpr size_t kBytes = 4096;
  char* memory = world->lendable(0, kBytes);
  if (memory == nullptr) return;
  Sender& to = *world->rank(0).sender(ConnectionKind::fan_out, 0, -1);
  Receiver& first = *world->rank(1).receiver(ConnectionKind::fan_out, 0, 0);
  Receiver& second = *world->rank(2).receiver(ConnectionKind::fan_out, 0, 0);
  std::vector<char> ordinary(kBytes);
  CHECK(to.can_lend(memory, kBytes));
  CHECK(to.can_lend(memory + kBytes - 57, 57));
  CHECK(!to.can_lend(memory, kInlineBytes));  // a line carries it
  const bool in_place = world->reads_in_place(0, 1) || world->reads_in_place(0, 2);
  CHECK_EQ(to.can_lend(ordinary.data(), kBytes), !in_place);             // a wire takes any memory
  CHECK_EQ(to.can_lend(world->lendable(1, kBytes), kBytes), !in_place);  // another rank's
  CHECK(to.settled());
  for (uint64_t k = 0; k < 30; ++k) {
    fill(memory, kBytes, 9, k);
    await("room", [&] { return to.reserve(0); });
    to.lend(memory, kBytes, static_cast<uint32_t>(k));
    if (k % 2) put(to, kBytes, 9, k + 1);  // a copy of something else right behind it
    CHECK(!to.settled());
    for (Receiver* from : {&first, &second}) {
      take(*from, kBytes, 9, k);
      if (k % 2) take(*from, kBytes, 9, k + 1);
    }
    first.flush();
    CHECK(!to.settled());
    CHECK_EQ(to.waits_for(), 2);
    second.flush();
    await("the readers", [&] { return to.settled(); });
    CHECK(to.returned());
  }
  uint32_t tag;
  await("room", [&] { return to.reserve(0); });
  to.lend(memory + 8, 100, 7);
  await("a message", [&] { return first.peek(100, &tag); });
  CHECK_EQ(first.lent(), world->reads_in_place(0, 1));
  first.release();
  put(to, 100, 9, 1);
  await("a message", [&] { return first.peek(100, &tag); });
  CHECK(!first.lent());
}

// Lending needs no slots: it works where there is no memory for them. The reader of a wire needs memory for one message.
void lending_without_slots(const Kind& kind) {
  auto world = kind.make({2, 1, 4, 1 << 20, 1 << 20, 1 << 20, 2 << 20});
  char* memory = world->lendable(0, 1 << 20);
  if (memory == nullptr) return;
  Sender& to = *world->rank(0).sender(ConnectionKind::pair, 0, 1);
  Receiver& from = *world->rank(1).receiver(ConnectionKind::pair, 0, 0);
  fill(memory, 1 << 20, 3, 3);
  CHECK(to.reserve(0) != nullptr);
  to.lend(memory, 1 << 20, 3);
  take(from, 1 << 20, 3, 3);
  CHECK(to.error() == nullptr);
}

void contract(const Kind& kind) {
  std::printf(" kind %s\n", kind.name);
  const std::pair<const char*, void (*)(const Kind&)> promises[] = {
      {"one object per end", made_once},
      {"reserve, publish, peek, release", reserve_twice},
      {"sizes", sizes},
      {"full, flushed, free", full},
      {"fan-out", fan_out},
      {"independent of each other", independent},
      {"streams on threads", streams},
      {"settled", settled},
      {"lending", lending},
      {"lending without slots", lending_without_slots},
      {"out of memory", no_memory},
  };
  for (const auto& [name, promise] : promises) {
    section(name);
    promise(kind);
  }
}

}  // namespace

// Without arguments all kinds, else those named: connection_test verbs shm+verbs.
int main(int argc, char** argv) {
  start("connection_test", real_devices().empty() ? 120 : 280);
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  for (const Kind& kind : {kShm, kTcp, kMixed, kVerbs, kMixedVerbs})
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), kind.name) != wanted.end()) contract(kind);
  return 0;
}
