// Monitored barriers: whatever ranks do and whenever they give up, each barrier has one verdict, and nobody is blamed who came.
#include <array>
#include <barrier>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/roll_call.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

using Verdict = RollCall::Verdict;
constexpr int kRanks = 4;

struct Page {
  alignas(64) std::array<char, 256> memory{};
  RollCall of(int rank, int ranks = kRanks) { return {memory.data(), ranks, rank}; }
};

uint32_t arrive(RollCall& rank, bool expect_late = false) {
  bool late = false;
  const uint32_t number = rank.arrive(&late);
  CHECK(late == expect_late);
  return number;
}

void all_come() {
  Page page;
  for (uint32_t number = 1; number < 5; ++number) {
    for (int r = 0; r < kRanks; ++r) {
      RollCall rank = page.of(r);
      CHECK(rank.verdict(number) == Verdict::none);
      CHECK(arrive(rank) == number);
      CHECK(rank.absent(number).size() == static_cast<size_t>(kRanks - 1 - r));
    }
    CHECK(page.of(2).pass(number) == Verdict::passed);
    CHECK(page.of(0).give_up(number) == Verdict::passed);  // too late to give up
  }
}

void one_is_late() {
  Page page;
  RollCall early = page.of(0), other = page.of(1), late = page.of(2), later = page.of(3);
  for (uint32_t number = 1; number <= 2; ++number) {
    CHECK(arrive(early) == number);
    CHECK(arrive(other) == number);
    CHECK(early.give_up(number) == Verdict::given_up);
    CHECK((other.missed(number) == std::vector<int>{2, 3}));
  }
  CHECK(arrive(late, true) == 2);                      // one error for both that it missed
  CHECK((other.missed(2) == std::vector<int>{2, 3}));  // it counts as missing though it has come since
  CHECK(arrive(later, true) == 2);
  for (RollCall* rank : {&early, &other, &late, &later}) CHECK(arrive(*rank) == 3);
  CHECK(late.pass(3) == Verdict::passed);
  CHECK(early.verdict(3) == Verdict::passed);
}

// One barrier of one rank. Impatient ranks give up after a random number of looks. True: passed.
bool one_of_many(RollCall& roll, uint32_t number, bool patient, Random& random) {
  bool late = false;
  CHECK(roll.arrive(&late) == number);
  CHECK(!(late && patient));
  if (late) return false;
  const uint64_t patience = patient ? UINT64_MAX : random.below(6);
  for (uint64_t look = 0; roll.verdict(number) == Verdict::none; ++look) {
    if (roll.absent(number).empty())
      roll.pass(number);
    else if (look >= patience && roll.give_up(number) == Verdict::given_up)
      CHECK(!roll.missed(number).empty());
    sched_yield();
  }
  return roll.verdict(number) == Verdict::passed;
}

// Ranks as threads, in step by another barrier. All must have seen the same.
void at_random(uint32_t barriers) {
  Page page;
  std::array<std::vector<char>, kRanks> passed;
  std::barrier step(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      RollCall roll = page.of(r);
      Random random(static_cast<uint64_t>(r) + 1);
      for (uint32_t number = 1; number <= barriers; ++number) {
        step.arrive_and_wait();
        for (uint64_t yields = random.below(3); yields > 0; --yields) sched_yield();
        passed[r].push_back(one_of_many(roll, number, number % 4 == 0, random));
      }
    });
  for (std::thread& t : threads) t.join();
  size_t times = 0, odd_times = 0;
  for (uint32_t i = 0; i < barriers; ++i) {
    const bool is_patient = (i + 1) % 4 == 0;
    for (int r = 1; r < kRanks; ++r) CHECK(passed[r][i] == passed[0][i]);
    CHECK(passed[0][i] || !is_patient);
    times += passed[0][i];
    odd_times += passed[0][i] && !is_patient;
  }
  std::printf("    %zu of %u passed, %zu of them in a hurry\n", times, barriers, odd_times);
  CHECK(times < barriers);  // else nothing was tried
}

}  // namespace

int main() {
  start("roll_call", 120);
  all_come();
  one_is_late();
  at_random(4000);
  return 0;
}
