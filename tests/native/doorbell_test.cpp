// Sleeping and waking between threads: no wake-up is lost. A thread that misses one sleeps for kTooLong, which nothing
// else explains.
#include "core/doorbell.h"

#include <sched.h>

#include <memory>
#include <vector>

#include "check.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr int64_t kTooLong = 20'000'000'000;

// The sleeper's side of the protocol: until `ready` is true.
template <typename Ready>
void sleep_until(Doorbell& bell, Ready ready) {
  while (!ready()) {
    const uint32_t seen = bell.raise();
    if (ready()) return;
    const int64_t before = now_ns();
    bell.sleep(seen, kTooLong);
    CHECK(now_ns() - before < kTooLong / 2);
  }
}

void dawdle(Random& random) {
  if (random.one_in(7)) usleep(static_cast<useconds_t>(random.below(120)));
  if (random.one_in(3)) sched_yield();
}

// Two processes' worth: each side publishes, rings the other, waits for its answer.
void ping_pong(int rounds) {
  Doorbell bells[2] = {};
  std::atomic<int> counters[2] = {};
  const auto side = [&](int me) {
    Random random(me + 1);
    for (int i = 1; i <= rounds; ++i) {
      if (me == 1) sleep_until(bells[1], [&] { return counters[0] >= i; });
      dawdle(random);
      counters[me].store(i, std::memory_order_seq_cst);
      bells[1 - me].ring();
      if (me == 0) sleep_until(bells[0], [&] { return counters[1] >= i; });
    }
  };
  std::thread other(side, 1);
  side(0);
  other.join();
}

// Several sleepers of one process share the flag: who clears it has to wake them all. `rings_own`: a sleeper that found
// its message rings for the others, as a caller does that leaves.
void sleepers(int count, int rounds) {
  Doorbell bell = {};
  std::vector<std::atomic<int>> inbox(count);
  std::vector<std::atomic<int>> taken(count);
  std::vector<std::thread> threads;
  for (int s = 0; s < count; ++s)
    threads.emplace_back([&, s] {
      Random random(10 + s);
      for (int i = 1; i <= rounds; ++i) {
        sleep_until(bell, [&] { return inbox[s] >= i; });
        taken[s].store(i);
        dawdle(random);
      }
    });
  Random random(99);
  for (int i = 1; i <= rounds; ++i) {
    const int first = static_cast<int>(random.below(count));
    for (int k = 0; k < count; ++k) {
      inbox[(first + k) % count].store(i, std::memory_order_seq_cst);
      bell.ring();
      dawdle(random);
    }
    for (int k = 0; k < count; ++k) await("a sleeper", [&] { return taken[k] >= i; });
  }
  for (std::thread& t : threads) t.join();
}

// Two writers and two sleepers, all free running.
void two_by_two(int rounds) {
  Doorbell bell = {};
  std::atomic<int> inbox[2] = {};
  const auto write = [&](int w) {
    Random random(30 + w);
    for (int i = 1; i <= rounds; ++i) {
      inbox[w].store(i, std::memory_order_seq_cst);
      bell.ring();
      dawdle(random);
    }
  };
  const auto read = [&](int w) {
    for (int seen = 0; seen < rounds; seen = inbox[w]) sleep_until(bell, [&] { return inbox[w] > seen; });
  };
  std::thread threads[] = {std::thread(write, 0), std::thread(write, 1), std::thread(read, 0), std::thread(read, 1)};
  for (std::thread& t : threads) t.join();
}

// Failure and exit: whoever is asleep wakes although nobody raised anything since.
void always() {
  Doorbell bell = {};
  std::atomic<bool> stop{false}, asleep{false};
  std::thread sleeper([&] {
    while (!stop) {
      const uint32_t seen = bell.raise();
      asleep = true;
      if (stop) return;
      const int64_t before = now_ns();
      bell.sleep(seen, kTooLong);
      CHECK(now_ns() - before < kTooLong / 2);
    }
  });
  await("the sleeper", [&] { return asleep.load(); });
  bell.sleeping = 0;
  stop = true;
  bell.ring_always();
  sleeper.join();
}

void ends_at_its_time() {
  Doorbell bell = {};
  const int64_t before = now_ns();
  CHECK(!bell.sleep(bell.raise(), 20'000'000));
  CHECK(now_ns() - before >= 15'000'000);
  CHECK(!bell.sleep(bell.word - 1, kTooLong));  // the word has moved on: no sleep at all
  CHECK(now_ns() - before < kTooLong / 2);
}

}  // namespace

int main() {
  start("doorbell_test", 120);
  section("one sleeper a process");
  ping_pong(4000);
  section("several sleepers a process");
  sleepers(2, 1500);
  sleepers(3, 600);
  two_by_two(3000);
  section("ring_always, time out, a word that moved");
  always();
  ends_at_its_time();
  return 0;
}
