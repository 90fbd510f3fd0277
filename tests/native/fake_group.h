// Ranks over the fake driver, which must have nothing to note and nothing left at the end.
#pragma once

#include "fake_cuda.h"
#include "group_ranks.h"

namespace ringcomm::test {

inline Machine fake_machine() {
  return {[]() -> const cuda::Driver& { return fake_cuda(); }, fake_cuda_image()};
}

inline void nothing_left() {
  CHECK_EQ(fake_cuda_misuse(), std::string());
  CHECK(fake_cuda_live().none());
}
inline void in_threads(const GroupSpec& spec, const RankBody& body) {
  fake_cuda_reset();
  in_threads(fake_machine(), spec, body);
  nothing_left();
}
inline void in_processes(const GroupSpec& spec, const RankBody& body) {
  in_processes(fake_machine(), spec, body, nothing_left);
}

}  // namespace ringcomm::test
