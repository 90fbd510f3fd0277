// A bug that must be caught: a device that delivers the last part of a payload before another, so that who reads it reads what is still being written.
#include "verbs_pair.h"

using namespace ringcomm;
using namespace ringcomm::test;

int main() {
  start("verbs_planted", 120);
  constexpr size_t kBytes = 1 << 20;
  fake_most_bytes(64 << 10);
  VerbsPair two({kBytes});
  fake_overtake(true);
  std::thread reader([&] {
    for (uint64_t k = 0; k < 200; ++k) take(two, 1, kBytes, 1, k);
  });
  for (uint64_t k = 0; k < 200; ++k) put(two, 0, kBytes, 1, k);
  reader.join();
  return 0;
}
