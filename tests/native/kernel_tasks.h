// Random tasks for a plan.
#pragma once

#include "kernel_job.h"

namespace ringcomm::test {

inline constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16,
                                   DType::int64,   DType::uint8,    DType::float64};
inline constexpr size_t kSizes[] = {0, 1, 15, 64, 65, 333, 1000, 4099};

// A task of random kind, of the sizes above and some more.
inline Task random_task(Random& random, const cuda::DeviceLayout& layout, uint32_t turn) {
  Task t;
  t.dtype = kTypes[random.below(std::size(kTypes))];
  t.op = ReduceOp::sum;
  if (random.one_in(3)) t.op = random.one_in(2) ? ReduceOp::avg : ReduceOp::max;
  const size_t elements[] = {1, 2, 4, 8, 16, 3};
  t.element = elements[random.below(std::size(elements))];
  t.size = turn < std::size(kSizes) ? kSizes[turn] : random.below(kSanitized ? 700 : 3000);
  t.low_latency = turn % 2 == 1;
  t.uneven = random.one_in(3), t.sized_tags = t.uneven && random.one_in(2);
  t.in_place = random.one_in(3);
  t.misaligned = random.one_in(3) ? random.below(16) : 0;
  t.blocks = 1 + static_cast<uint32_t>(random.below(static_cast<size_t>(layout.shape().blocks)));
  t.piece =
      std::min<size_t>(layout.largest_piece(t.low_latency, static_cast<int>(t.blocks)) / 16, 1 + random.below(100));
  t.tag = turn + 1;
  return t;
}

// Runs so many random tasks with one plan, one after the other on every rank's stream, and compares each with the host.
inline void check_plan(const Plan& tables, Grid grid, uint32_t tasks) {
  const int ranks = static_cast<int>(tables.size());
  const Collective collective = static_cast<Collective>(tables[0][2]);
  KernelGroup group({ranks, static_cast<int>(grid.blocks), 4, 4096, 2048}, grid.threads);
  Random random(static_cast<uint64_t>(ranks) * 100 + grid.blocks * 10 + grid.threads);
  std::vector<std::unique_ptr<Loaded>> loaded;
  for (const auto& table : tables) loaded.push_back(group.load(table));
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::vector<Launch>> launches(tables.size());
  for (uint32_t k = 0; k < tasks; ++k) {
    Task task = random_task(random, group.layout(), k);
    if (collective == Collective::all_to_all) task.in_place = false;  // shares no memory
    if (cut(collective)) task.uneven = task.sized_tags = false;
    jobs.push_back(std::make_unique<Job>(tables, task));
    for (size_t r = 0; r < tables.size(); ++r)
      launches[r].push_back(jobs.back()->launch(*loaded[r], static_cast<int>(r)));
  }
  group.run(std::move(launches));
  for (const auto& job : jobs) job->check();
}

}  // namespace ringcomm::test
