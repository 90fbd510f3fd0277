// What every wire promises to ends that sleep: for a pair of ranks, each with its own doorbell, over any of them.
//
// A Pair has sender(rank, channel), receiver(rank, channel), bell(rank), port(rank), leave(rank), which unmakes its connections, and stop(rank), which ends its
// poller; it is made from {bytes of a slot}.
#pragma once

#include <unistd.h>

#include <thread>

#include "check.h"
#include "core/connection.h"
#include "core/doorbell.h"

namespace ringcomm::test {

inline constexpr int64_t kMs = 1'000'000, kSecond = 1'000'000'000;

// As the engine waits: look a few times, raise the flag, look, sleep. A lost wake-up shows as a sleep that was as long as it could be.
template <typename Ready>
auto sleep_until(Doorbell& bell, Ready ready) {
  while (true) {
    for (int i = 0; i < 3; ++i)
      if (auto value = ready()) return value;
    const uint32_t seen = bell.raise();
    if (auto value = ready()) return value;
    const int64_t begin = now_ns();
    bell.sleep(seen, 16 * kSecond);
    if (now_ns() - begin > 15 * kSecond)
      fail("an end that slept", 0,
           ready() ? "was not woken: what it waits for is there" : "waits for what does not come");
  }
}

template <typename Pair>
void put(Pair& two, int rank, size_t bytes, uint64_t stream, uint64_t k, int channel = 0) {
  Sender& to = two.sender(rank, channel);
  char* place = sleep_until(two.bell(rank), [&] { return to.reserve(bytes); });
  fill(place, bytes, stream, k);
  to.publish(static_cast<uint32_t>(k));
}

template <typename Pair>
void take(Pair& two, int rank, size_t bytes, uint64_t stream, uint64_t k, bool flushes = true, int channel = 0) {
  Receiver& from = two.receiver(rank, channel);
  uint32_t tag = 0;
  const char* data = sleep_until(two.bell(rank), [&] {
    const char* there = from.peek(bytes, &tag);
    if (!there) from.flush();
    if (from.error()) fail("a receiver", rank, from.error()->text);
    return there;
  });
  CHECK_EQ(tag, static_cast<uint32_t>(k));
  CHECK(holds(data, bytes, stream, k));
  from.release();
  if (flushes) from.flush();
}

template <typename Pair>
void to_and_fro(uint64_t rounds) {
  Pair two;
  std::thread other([&] {
    for (uint64_t k = 0; k < rounds; ++k) take(two, 1, 8, 1, k), put(two, 1, 8, 2, k);
  });
  for (uint64_t k = 0; k < rounds; ++k) put(two, 0, 8, 1, k), take(two, 0, 8, 2, k);
  other.join();
}

// Far more than the wire and the slots hold, by ends that sleep, with pauses on either side: the poller, or the device, goes on with what the writer left.
template <typename Pair>
void streams_asleep(uint64_t messages) {
  constexpr size_t kBytes = 1 << 20;
  const auto size_of = [](uint64_t k) { return k % 7 == 0 ? size_t{8} : kBytes - k * 1000; };
  Pair two({kBytes});
  std::thread reader([&] {
    Random random(2);
    for (uint64_t k = 0; k < messages; ++k) {
      if (random.one_in(9)) usleep(5000);
      take(two, 1, size_of(k), 1, k, random.one_in(2));
    }
    two.receiver(1).flush();
  });
  Random random(1);
  for (uint64_t k = 0; k < messages; ++k) {
    if (random.one_in(9)) usleep(5000);
    put(two, 0, size_of(k), 1, k);
  }
  sleep_until(two.bell(0), [&] { return two.sender(0).settled(); });
  reader.join();
}

// A count that nobody asked for comes all the same, though its reader looks no more; later ones are asked for.
template <typename Pair>
void counts() {
  Pair two;
  for (uint64_t k = 0; k < 5; ++k) {
    put(two, 0, 8, 1, k);
    take(two, 1, 8, 1, k, false);
    CHECK(!two.sender(0).settled());
    two.receiver(1).flush();
    sleep_until(two.bell(0), [&] { return two.sender(0).settled(); });
  }
}

// What was published arrives though its writer is gone, at once or after a while: from the slots too, for `large` is more than the wire holds by itself.
template <typename Pair>
void writer_leaves(size_t large) {
  for (size_t bytes : {size_t{8}, large})
    for (bool at_once : {true, false}) {
      Pair two({bytes < 4096 ? size_t{4096} : bytes});
      for (uint64_t k = 0; k < 3; ++k) put(two, 0, bytes, 1, k);
      if (!at_once) two.port(0).settle(now_ns() + 50 * kMs);
      two.leave(0);
      for (uint64_t k = 0; k < 3; ++k) take(two, 1, bytes, 1, k, false);
      two.receiver(1).flush();
      CHECK(two.port(0).settle(now_ns() + 10 * kSecond));
    }
}

// A reader that flushes and leaves at once has told its writer.
template <typename Pair>
void reader_flushes_and_leaves() {
  for (bool at_exit : {false, true}) {
    Pair two;
    put(two, 0, 8, 1, 0);
    take(two, 1, 8, 1, 0);
    if (at_exit)
      CHECK(two.port(1).settle(now_ns() + 10 * kSecond));
    else
      two.leave(1);
    if (at_exit) two.stop(1);
    sleep_until(two.bell(0), [&] { return two.sender(0).settled(); });
  }
}

}  // namespace ringcomm::test
