// Plans made elsewhere: tests/cuda/test_kernel_plans.py writes those of Python's schedules to a file. int32: for each plan the number of ranks, and for each rank the number of
// words and the packed program.
#pragma once

#include <fstream>
#include <iterator>

#include "kernel_tasks.h"

namespace ringcomm::test {

inline int check_plan_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<int32_t> words(bytes.size() / sizeof(int32_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(int32_t));
  int plans = 0;
  for (size_t at = 0; at < words.size(); ++plans) {
    Plan plan(static_cast<size_t>(words[at++]));
    for (auto& table : plan) {
      const size_t count = static_cast<size_t>(words[at++]);
      table.assign(words.begin() + static_cast<long>(at), words.begin() + static_cast<long>(at + count));
      at += count;
    }
    std::printf("plan %d\n", plans);  // the last one printed is the one that failed
    std::fflush(stdout);
    check_plan(plan, plans % 2 == 0 ? Grid{1, 2} : Grid{3, 1}, 10);
  }
  std::printf("%d plans\n", plans);
  return 0;
}

}  // namespace ringcomm::test
