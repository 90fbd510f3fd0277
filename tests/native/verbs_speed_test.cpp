// Measures one verbs connection, for comparison with ib_write_bw and ib_write_lat over the same devices (tests/rdma); asserts only that what came is what was sent.
// A line per figure: `bandwidth BYTES MB/s` with the default number of slots, `bandwidth_16_slots BYTES MB/s`, `latency BYTES us` (one way, the median).
#include <algorithm>
#include <cstring>

#include "verbs_pair.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

const bool kReal = !real_devices().empty();

// Both ends look all the time, as perftest's do; at the clock seldom, which in a guest may cost more than a message. The alarm ends what hangs. The fake's NIC is a
// thread that needs a processor as well, and its figures mean nothing.
template <typename Ready>
auto spin(Ready ready) {
  while (true) {
    if (auto value = ready()) return value;
    if (!kReal) std::this_thread::yield();
  }
}

char* room(Sender& to, size_t bytes) {
  return spin([&] { return to.reserve(bytes); });
}

void arrives(Receiver& from, size_t bytes, uint32_t tag) {
  uint32_t got = 0;
  const char* data = spin([&] { return from.peek(bytes, &got); });
  CHECK_EQ(got, tag);
  CHECK_EQ(data[0], static_cast<char>(tag));
  CHECK_EQ(data[bytes - 1], static_cast<char>(tag));
  from.release();
  from.flush();
}

void send(Sender& to, std::vector<char>& message, uint32_t tag) {
  message.front() = message.back() = static_cast<char>(tag);
  char* place = room(to, message.size());
  to.fill(place, message.data(), message.size());
  to.publish(tag);
}

void bandwidth(const char* name, size_t bytes, uint32_t slots) {
  PairOptions options{std::max<size_t>(bytes, 4096)};
  options.slots = slots;
  VerbsPair two(options);
  const uint32_t messages = static_cast<uint32_t>((kReal ? size_t{16} << 20 : size_t{8} << 20) / bytes);
  std::thread reader([&] {
    for (uint32_t k = 0; k < messages; ++k) arrives(two.receiver(1), bytes, k);
  });
  std::vector<char> message(bytes);
  constexpr uint32_t kFirst = 4;  // the connection is made, and its slots
  int64_t begin = now_ns();
  for (uint32_t k = 0; k < messages; ++k) {
    if (k == kFirst) begin = now_ns();
    send(two.sender(0), message, k);
  }
  spin([&] { return two.sender(0).settled(); });
  const double seconds = static_cast<double>(now_ns() - begin) / 1e9;
  reader.join();
  std::printf("%s %zu %.2f MB/s\n", name, bytes, static_cast<double>(bytes) * (messages - kFirst) / seconds / 1e6);
}

void latency(size_t bytes) {
  VerbsPair two;
  const uint32_t rounds = kReal ? 500 : 200;
  std::thread other([&] {
    std::vector<char> message(bytes);
    for (uint32_t k = 0; k < rounds; ++k) arrives(two.receiver(1), bytes, k), send(two.sender(1), message, k);
  });
  std::vector<char> message(bytes);
  std::vector<int64_t> took;
  for (uint32_t k = 0; k < rounds; ++k) {
    const int64_t begin = now_ns();
    send(two.sender(0), message, k);
    arrives(two.receiver(0), bytes, k);
    took.push_back(now_ns() - begin);
  }
  other.join();
  std::nth_element(took.begin(), took.begin() + rounds / 2, took.end());
  std::printf("latency %zu %.2f us\n", bytes, static_cast<double>(took[rounds / 2]) / 2e3);
}

}  // namespace

int main() {
  start("verbs_speed_test", kReal ? 240 : 60);
  for (size_t bytes : {size_t{64} << 10, size_t{1} << 20}) {
    bandwidth("bandwidth", bytes, 4);
    bandwidth("bandwidth_16_slots", bytes, 16);
  }
  for (size_t bytes : {size_t{48}, size_t{64}}) latency(bytes);
  return 0;
}
