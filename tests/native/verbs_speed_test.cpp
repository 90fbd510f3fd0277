// Measures one verbs connection, for comparison with ib_write_bw and ib_write_lat over the same devices (tests/rdma); asserts only that what came is what was sent.
// A line per figure: `bandwidth BYTES MB/s`, `latency BYTES us` (one way, the median).
#include <algorithm>
#include <cstring>

#include "engine/backoff.h"
#include "verbs_pair.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

const bool kReal = !real_devices().empty();
constexpr int64_t kSpinNs = 80'000;  // of the shipped configuration

// As the engine waits where the ranks fit the cores: it looks for a while, then sleeps until woken. In a guest whose processors are few, ends that always look keep
// soft RoCE from working. The alarm ends what hangs.
template <typename Ready>
auto wait(Doorbell& bell, Ready ready) {
  Backoff backoff({kSpinNs, 0});
  while (true) {
    if (auto value = ready()) return value;
    if (backoff.stay_awake()) continue;
    const uint32_t seen = bell.raise();
    if (auto value = ready()) return value;
    bell.sleep(seen, 100 * kSecond);
    backoff.reset();
  }
}

void arrives(VerbsPair& two, int rank, size_t bytes, uint32_t tag) {
  Receiver& from = two.receiver(rank);
  uint32_t got = 0;
  const char* data = wait(two.bell(rank), [&] { return from.peek(bytes, &got); });
  CHECK_EQ(got, tag);
  CHECK_EQ(data[0], static_cast<char>(tag));
  CHECK_EQ(data[bytes - 1], static_cast<char>(tag));
  from.release();
  from.flush();
}

void send(VerbsPair& two, int rank, std::vector<char>& message, uint32_t tag) {
  Sender& to = two.sender(rank);
  message.front() = message.back() = static_cast<char>(tag);
  char* place = wait(two.bell(rank), [&] { return to.reserve(message.size()); });
  to.fill(place, message.data(), message.size());
  to.publish(tag);
}

void bandwidth(size_t bytes) {
  VerbsPair two({std::max<size_t>(bytes, 4096)});
  const uint32_t messages = static_cast<uint32_t>((kReal ? size_t{16} << 20 : size_t{8} << 20) / bytes);
  std::thread reader([&] {
    for (uint32_t k = 0; k < messages; ++k) arrives(two, 1, bytes, k);
  });
  std::vector<char> message(bytes);
  constexpr uint32_t kFirst = 4;  // the connection is made, and its slots
  int64_t begin = now_ns();
  for (uint32_t k = 0; k < messages; ++k) {
    if (k == kFirst) begin = now_ns();
    send(two, 0, message, k);
  }
  wait(two.bell(0), [&] { return two.sender(0).settled(); });
  const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
  reader.join();
  std::printf("bandwidth %zu %.2f MB/s\n", bytes, static_cast<double>(bytes) * (messages - kFirst) / seconds / 1e6);
}

void latency(size_t bytes) {
  VerbsPair two;
  const uint32_t rounds = kReal ? 500 : 200;
  std::thread other([&] {
    std::vector<char> message(bytes);
    for (uint32_t k = 0; k < rounds; ++k) arrives(two, 1, bytes, k), send(two, 1, message, k);
  });
  std::vector<char> message(bytes);
  std::vector<int64_t> took;
  for (uint32_t k = 0; k < rounds; ++k) {
    const int64_t begin = now_ns();
    send(two, 0, message, k);
    arrives(two, 0, bytes, k);
    took.push_back(now_ns() - begin);
  }
  other.join();
  std::nth_element(took.begin(), took.begin() + rounds / 2, took.end());
  std::printf("latency %zu %.2f us\n", bytes, static_cast<double>(took[rounds / 2]) / 2e3);
}

}  // namespace

int main() {
  start("verbs_speed_test", kReal ? 240 : 60);
  for (size_t bytes : {size_t{64} << 10, size_t{1} << 20}) bandwidth(bytes);
  for (size_t bytes : {size_t{48}, size_t{64}}) latency(bytes);
  return 0;
}
