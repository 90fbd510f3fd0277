// What ranks write on the board of a node: it stands where the layout says, and a call is read as it was announced or not at all. Ranks are threads, each with
// a Board over one page. Failures are in board_failure_test, the mirror of other nodes' ranks in control_test, the roll call in roll_call_test.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "board_page.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

// A call whose every field follows from its number and who makes it.
Fingerprint call(int rank, uint64_t sequence) {
  const uint64_t n = sequence * 64 + static_cast<uint64_t>(rank);
  Fingerprint f;
  f.collective = static_cast<Collective>(n % kCollectives);
  f.dtype = static_cast<DType>(n % 5);
  f.op = static_cast<ReduceOp>(n % 3);
  f.root = static_cast<int>(n % 1000) - 1;
  f.sequence = sequence;
  f.bytes = n * 0x9E3779B97F4A7C15ull;
  f.uniform = n % 2 == 0;
  f.schedule = static_cast<uint32_t>(n * 2654435761u);
  return f;
}

// ---------------------------------------------------------------------------------------------------------------- layout

// What one step changed must lie in one part of the page, and have changed it.
class Watched {
 public:
  explicit Watched(Page& page) : page_(page), before_(page.bytes()) {}
  void changed_only(size_t from, size_t bytes) {
    const std::vector<char> now = page_.bytes();
    size_t changes = 0;
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] == before_[i]) continue;
      ++changes;
      if (i < from || i >= from + bytes) fail("a byte outside the part", static_cast<int>(i), std::to_string(from));
    }
    CHECK(changes > 0);
    before_ = now;
  }

 private:
  Page& page_;
  std::vector<char> before_;
};

void layout_of(int ranks) {
  CHECK_EQ(Board::bytes(ranks), end_of(static_cast<size_t>(ranks)));
  Page page(ranks);
  Watched watched(page);
  for (int r = 0; r < ranks; ++r) {
    const auto rank = static_cast<size_t>(r);
    Board board = page.of(r);
    CHECK(board.state(r) == RankState::absent);
    board.set_state(RankState::left);
    watched.changed_only(kStates + 4 * rank, 4);
    for (uint64_t k = 1; k <= kCalls + 1; ++k) {
      board.announce(call(r, k));
      watched.changed_only(lines_at(static_cast<size_t>(ranks)) + (rank * kCalls + k % kCalls) * kLineBytes,
                           kLineBytes);
    }
    bool late = false;
    CHECK_EQ(board.roll_call().arrive(&late), 1u);
    watched.changed_only(roll_call_at(static_cast<size_t>(ranks)) + 8 + 8 * rank, 4);
  }
  Board last = page.of(ranks - 1);
  CHECK(last.roll_call().pass(1) == RollCall::Verdict::passed);
  watched.changed_only(roll_call_at(static_cast<size_t>(ranks)), 8);
  Error error;
  std::memset(error.text, 'x', sizeof error.text - 1);
  CHECK(last.post(error));
  watched.changed_only(0, kStates);
  for (int r = 0; r < ranks; ++r) {  // and nothing of it was written over
    CHECK(last.state(r) == RankState::left);
    for (uint64_t k = 2; k <= kCalls + 1; ++k) {
      Fingerprint f;
      CHECK(last.find(r, k, f) && f == call(r, k));
    }
  }
}

// The board grows by a line of states with the 17th, 33rd and 65th rank, and leaves its first page with the 12th.
void layout() {
  for (int ranks : {1, 2, 11, 12, 16, 17, 32, 33, 64, 65, 129}) layout_of(ranks);
  CHECK(Board::bytes(11) <= kPageBytes && Board::bytes(12) > kPageBytes);
}

// ---------------------------------------------------------------------------------------------------------------- calls

void states() {
  Page page(3);
  Board a = page.of(0), b = page.of(1);
  for (RankState state : {RankState::present, RankState::left}) {
    b.set_state(state);
    CHECK(a.state(1) == state);
    CHECK(b.state(1) == state);
    CHECK(a.state(0) == RankState::absent);
    CHECK(a.state(2) == RankState::absent);
  }
}

// The last kCalls calls are there, older ones are not, and none that was never made.
void last_calls() {
  Page page(3);
  Board writer = page.of(1), reader = page.of(2);
  int64_t age = -1;
  Fingerprint f;
  CHECK_EQ(reader.read(1, &age).sequence, uint64_t{0});
  CHECK(!reader.find(1, 0, f));
  CHECK(!reader.find(1, 1, f));
  for (uint64_t made = 1; made <= 3 * kCalls; ++made) {
    const int64_t before = now_ns();
    writer.announce(call(1, made));
    CHECK(reader.read(1, &age) == call(1, made));
    CHECK(age >= 0 && age <= now_ns() - before);
    for (uint64_t k = 0; k <= made + kCalls; ++k) {
      const bool there = k >= 1 && k <= made && k + kCalls > made;
      CHECK_EQ(reader.find(1, k, f), there);
      if (there) CHECK(f == call(1, k));
    }
    Fingerprint own[kCalls];
    int64_t ages[kCalls];
    const int n = writer.calls(own, ages);
    CHECK_EQ(static_cast<uint64_t>(n), std::min<uint64_t>(made, kCalls));
    for (int i = 0; i < n; ++i) {
      CHECK(own[i] == call(1, own[i].sequence) && own[i].sequence + kCalls > made);
      CHECK(ages[i] >= 0 && ages[i] < 100'000'000'000);
    }
    for (int other : {0, 2}) CHECK_EQ(reader.read(other, nullptr).sequence, uint64_t{0});
  }
}

// A reader looks while two ranks announce call after call: what it gets was announced as it stands, and numbers do not fall.
void lines_under_rewriting(uint64_t calls) {
  constexpr int kWriters = 2, kReaders = 2;
  Page page(kWriters + kReaders);
  std::atomic<int> writing{kWriters}, looking{0};
  std::atomic<uint64_t> whole{0}, newest{0};
  std::vector<std::thread> threads;
  for (int w = 0; w < kWriters; ++w)
    threads.emplace_back([&, w] {
      Board board = page.of(w);
      await("the readers", [&] { return looking == kReaders; });
      for (uint64_t k = 1; k <= calls; ++k) {
        board.announce(call(w, k));
        if (k % 256 == 0) sched_yield();  // else one processor shows readers little but the end
      }
      --writing;
    });
  for (int r = kWriters; r < kWriters + kReaders; ++r)
    threads.emplace_back([&, r] {
      Board board = page.of(r);
      Random random(static_cast<uint64_t>(r));
      uint64_t seen[kWriters] = {}, found = 0;
      ++looking;
      while (writing > 0) {
        const int w = static_cast<int>(random.below(kWriters));
        int64_t age = -1;
        // Nothing is read where every line was overwritten while it was looked at.
        if (const Fingerprint last = board.read(w, &age); last.sequence > 0) {
          CHECK(last == call(w, last.sequence));
          CHECK(age >= 0);
          seen[w] = std::max(seen[w], last.sequence);
        }
        Fingerprint f;
        const uint64_t wanted = seen[w] + 1 - std::min<uint64_t>(seen[w], random.below(kCalls));
        if (board.find(w, wanted, f)) CHECK(f == call(w, wanted)), ++found;
      }
      for (int w = 0; w < kWriters; ++w) CHECK(board.read(w, nullptr) == call(w, calls));
      whole += found;
    });
  for (std::thread& t : threads) t.join();
  std::printf("    %llu of the lines found were whole\n", static_cast<unsigned long long>(whole.load()));
}

}  // namespace

int main() {
  start("board_test", 150);
  section("layout");
  layout();
  section("states");
  states();
  section("the last calls");
  last_calls();
  section("lines under rewriting");
  lines_under_rewriting(30'000);
  return 0;
}
