// A bug that must be caught: a device that delivers the last part of a payload before the others, so that who reads it reads what is still being written.
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
    Receiver& from = two.receiver(1);
    std::string read;
    for (int k = 0; k < 10; ++k) {
      uint32_t tag;
      // Whatever it finds: a check of it would end the program before the others are written.
      read.assign(sleep_until(two.bell(1), [&] { return from.peek(kBytes, &tag); }), kBytes);
      from.release();
      from.flush();
    }
  });
  for (uint64_t k = 0; k < 10; ++k) put(two, 0, kBytes, 1, k);
  reader.join();
  return 0;
}
