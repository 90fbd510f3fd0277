// The run in which ThreadSanitizer must find a planted bug: two ranks, two_shot, blocks of four threads. A program that includes it has set the bug's macro.
#pragma once

#define RINGCOMM_TEST_FAMILIES(X) X(float32, PlainFormat<float>)
#include "kernel_plans.h"

int main() {
  using namespace ringcomm::test;
  start("a planted bug", 120);
  KernelGroup group({2, 2, 4, 4096, 0}, 4);
  const Plan tables = plan(two_shot, 2);
  std::unique_ptr<Loaded> loaded[] = {group.load(tables[0]), group.load(tables[1])};
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::vector<Launch>> launches(2);
  for (uint32_t k = 0; k < 6; ++k) {
    Task task;
    task.size = 20000, task.piece = 500, task.blocks = 2, task.tag = k + 1;
    jobs.push_back(std::make_unique<Job>(tables, task));
    for (int r = 0; r < 2; ++r) launches[static_cast<size_t>(r)].push_back(jobs.back()->launch(*loaded[r], r));
  }
  group.run(std::move(launches));
  return 0;  // results are not looked at: they may be right all the same
}
