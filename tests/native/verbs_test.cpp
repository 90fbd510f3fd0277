// What every wire promises (wire_promises.h), and what is the verbs' own: credits, ends that go away, sizes of devices. Runs on real devices too
// (test_verbs.h); verbs_failure_test.cpp has what only the fake can do wrong.
#include <cstring>

#include "verbs_pair.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

const bool kReal = !real_devices().empty();
const uint64_t kRounds = kReal ? 300 : 3000;

// A window of small messages, not one more, until the reader has told; with large ones among them as many as there are slots. A reader that tells often, and looks
// at its own completions seldom, runs into no limit either.
void window() {
  VerbsPair two;
  Sender& to = two.sender(0);
  for (size_t bytes : {size_t{8}, size_t{100}}) {
    const uint64_t most = bytes == 8 ? 64 : 4;
    put(two, 0, bytes, 1, 0);
    take(two, 1, bytes, 1, 0);
    await("the count", [&] { return to.settled(); });
    for (int round = 0; round < 300; ++round) {
      uint64_t fit = 0;
      for (char* place; (place = to.reserve(bytes)) != nullptr; ++fit)
        fill(place, bytes, 2, fit), to.publish(static_cast<uint32_t>(fit));
      CHECK(fit <= most);
      if (round == 0)
        CHECK(fit >= (bytes == 8 ? most - 16 : most));  // of small ones some may not be known to be through
      for (uint64_t k = 0; k < fit; ++k) take(two, 1, bytes, 2, k);
    }
    await("all counts", [&] { return to.settled(); });
  }
  CHECK(to.error() == nullptr);
}

// Large ones behind small ones, and the other way: places of both sorts are counted by themselves.
void mixed_sizes() {
  VerbsPair two;
  std::thread reader([&] {
    for (uint64_t k = 0; k < kRounds; ++k) take(two, 1, Random(k).one_in(4) ? 3000 : k % 57, 1, k, Random(k).one_in(3));
    two.receiver(1).flush();
  });
  for (uint64_t k = 0; k < kRounds; ++k) put(two, 0, Random(k).one_in(4) ? 3000 : k % 57, 1, k);
  reader.join();
}

// The reader has not asked for the connection yet; the writer is through with it and away.
void writer_leaves_early() {
  VerbsPair two;
  for (uint64_t k = 0; k < 3; ++k) put(two, 0, 200, 1, k);
  two.leave(0);
  CHECK(two.port(0).settle(now_ns() + 10 * kSecond));
  for (uint64_t k = 0; k < 3; ++k) take(two, 1, 200, 1, k);
}

void writer_is_gone() {
  VerbsPair two({4096, 300 * kMs});
  put(two, 0, 8, 1, 0);
  take(two, 1, 8, 1, 0);
  put(two, 0, 8, 1, 1);
  two.leave(0);
  take(two, 1, 8, 1, 1);  // what had come still counts
  const int64_t begin = now_ns();
  const Error error = receiving_fails(two, 1, 8);
  CHECK(now_ns() - begin > 100 * kMs);
  CHECK(error.cause == Cause::connection);
  CHECK_EQ(error.rank, 0);
  CHECK_CONTAINS(error.text, "verbs from rank 0 at 127.0.0.1:");
  // Or that a count found nobody any more.
  const bool closed = std::strstr(error.text, "closed by the other side"),
             unheard = std::strstr(error.text, "RETRY_EXC");
  CHECK(closed || unheard);
}

void reader_is_gone() {
  VerbsPair two({4096, 100 * kMs});
  put(two, 0, 8, 1, 0);
  take(two, 1, 8, 1, 0);
  put(two, 0, 8, 1, 1);  // unread for good
  two.leave(1);
  const Error error = sending_fails(two, 0, 8);
  CHECK(error.cause == Cause::connection);
  CHECK_EQ(error.rank, 1);
  CHECK_CONTAINS(error.text, "verbs to rank 1 at " + two.address(1));
  CHECK(!two.sender(0).settled());
}

// The reader's memory: it has an error of its own that says so at once, its writer one that names it.
void reader_has_no_memory() {
  VerbsPair two({1 << 20, 100 * kMs, {size_t{64} << 20, 1 << 20}});
  put(two, 0, 8, 1, 0);
  take(two, 1, 8, 1, 0);
  CHECK(two.sender(0).reserve(1 << 20) == nullptr);  // asks for slots
  const Error theirs = receiving_fails(two, 1, 1 << 20);
  CHECK(theirs.cause == Cause::no_memory);
  CHECK_CONTAINS(theirs.text, "memory.limit");
  CHECK_CONTAINS(sending_fails(two, 0, 1 << 20).text, "no memory for the slots");
}

// Ends are unmade at any moment of the making.
void unmade() {
  Random random(1);
  for (int i = 0; i < 60; ++i) {
    VerbsPair two;
    const int64_t until = now_ns() + static_cast<int64_t>(random.below(4'000'000));
    do {
      for (int r = 0; r < 2; ++r)
        for (size_t bytes : {size_t{8}, size_t{80}})
          if (char* place = two.sender(r).reserve(bytes)) fill(place, bytes, 1, 0), two.sender(r).publish(0);
    } while (now_ns() < until);
    two.leave(static_cast<int>(random.below(2)));
  }
}

}  // namespace

// Without arguments all promises, else those whose names begin so.
int main(int argc, char** argv) {
  start("verbs_test", 280);
  const std::string wanted = argc > 1 ? argv[1] : "";
  const std::pair<const char*, void (*)()> promises[] = {
      {"to and fro, asleep", [] { to_and_fro<VerbsPair>(kRounds); }},
      {"streams, asleep", [] { streams_asleep<VerbsPair>(kReal ? 40 : 120); }},
      {"counts", counts<VerbsPair>},
      {"window", window},
      {"sizes of both sorts", mixed_sizes},
      {"a writer leaves", [] { writer_leaves<VerbsPair>(size_t{4} << 20); }},
      {"a writer leaves before it is asked for", writer_leaves_early},
      {"a reader flushes and leaves", reader_flushes_and_leaves<VerbsPair>},
      {"a writer is gone", writer_is_gone},
      {"a reader is gone", reader_is_gone},
      {"a reader has no memory", reader_has_no_memory},
      {"unmade", unmade},
  };
  for (const auto& [name, promise] : promises) {
    if (std::string(name).rfind(wanted, 0) != 0) continue;
    section(name);
    promise();
    if (kReal) continue;
    await("queue pairs and memory to be given back",
          [] { return fake_counts().queue_pairs == 0 && fake_counts().regions == 0; });
  }
  return 0;
}
