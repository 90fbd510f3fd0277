// What the doorbell's protocol takes for granted of compiler and processor (or emulator): of two threads that each store
// their own word and then look at the other's, all sequentially consistent, at least one sees the other's store.
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "check.h"

namespace {

struct Cell {
  alignas(64) std::atomic<int> mine[2];
};

constexpr int kCells = 2000;
constexpr int kRounds = 300;

// In how many of kCells races neither thread saw the other's store.
int neither_saw(std::vector<Cell>& cells) {
  std::vector<int> seen[2] = {std::vector<int>(kCells), std::vector<int>(kCells)};
  for (Cell& cell : cells) cell.mine[0] = cell.mine[1] = 0;
  std::atomic<int> ready{0};
  const auto race = [&](int me) {
    ++ready;
    while (ready < 2) std::this_thread::yield();
    for (int i = 0; i < kCells; ++i) {
      cells[i].mine[me].store(1, std::memory_order_seq_cst);
      seen[me][i] = cells[i].mine[1 - me].load(std::memory_order_seq_cst);
    }
  };
  std::thread other(race, 1);
  race(0);
  other.join();
  int count = 0;
  for (int i = 0; i < kCells; ++i) count += seen[0][i] == 0 && seen[1][i] == 0;
  return count;
}

}  // namespace

int main() {
  ringcomm::test::start("memory_order_test", 120);
  std::vector<Cell> cells(kCells);
  int bad = 0;
  for (int round = 0; round < kRounds; ++round) bad += neither_saw(cells);
  if (bad != 0) std::printf("%d of %d races: neither thread saw the other's store\n", bad, kCells * kRounds);
  CHECK(bad == 0);
  return 0;
}
