// The board of a node: what ranks write on it stands where its layout says, the first failure wins whole, and a line is read as it was written or not at
// all. Ranks are threads, each with a Board of its own over one page; the mirror of other nodes' ranks is control_test's, the roll call roll_call_test's.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/board.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr int kCalls = Board::kCalls;

// The layout in docs/control_plane.md, in bytes.
constexpr size_t kStates = 1024, kLineBytes = 64, kPageBytes = 4096;
constexpr size_t lines_at(size_t ranks) { return kStates + (ranks + 15) / 16 * 64; }
constexpr size_t roll_call_at(size_t ranks) { return lines_at(ranks) + ranks * kCalls * kLineBytes; }
constexpr size_t end_of(size_t ranks) { return roll_call_at(ranks) + 8 + 8 * ranks; }

// Zeros, as a segment's new pages are, and behind them what must stay as it is.
class Page {
 public:
  explicit Page(int ranks) : ranks_(ranks), bytes_(Board::bytes(ranks)), lines_(bytes_ / kLineBytes + 2) {
    std::memset(at(), 0, bytes_);
    std::memset(at() + bytes_, kGuard, room() - bytes_);
  }
  ~Page() {
    for (size_t i = bytes_; i < room(); ++i) CHECK_EQ(int{at()[i]}, int{kGuard});
  }
  Board of(int rank) { return {at(), ranks_, rank}; }
  char* at() { return lines_.front().bytes; }
  std::vector<char> bytes() { return {at(), at() + bytes_}; }

 private:
  static constexpr char kGuard = 77;
  struct alignas(kLineBytes) Line {
    char bytes[kLineBytes];
  };
  size_t room() const { return lines_.size() * kLineBytes; }
  const int ranks_;
  const size_t bytes_;
  std::vector<Line> lines_;
};

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

// Likewise; no byte of the text is 0 but the last.
Error error_of(int rank, int round) {
  Error e;
  e.cause = static_cast<Cause>(1 + (rank + round) % 8);
  e.rank = rank, e.reporter = rank + 1, e.peer = rank + 2, e.channel = rank + 3, e.step = round;
  e.pid = 1000 + rank, e.collective = rank + 4, e.sequence = static_cast<uint64_t>(round) << 32 | 5u;
  std::memset(e.host, 'a' + rank, sizeof e.host - 1);
  std::memset(e.text, 'A' + (rank + round) % 26, sizeof e.text - 1);
  return e;
}

bool same(const Error& a, const Error& b) {
  return a.cause == b.cause && a.rank == b.rank && a.reporter == b.reporter && a.peer == b.peer &&
         a.channel == b.channel && a.step == b.step && a.pid == b.pid && a.collective == b.collective &&
         a.sequence == b.sequence && std::memcmp(a.host, b.host, sizeof a.host) == 0 &&
         std::memcmp(a.text, b.text, sizeof a.text) == 0;
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
  CHECK(last.post(error_of(1, 1)));
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
  for (int ranks : {1, 2, 11, 12, 16, 17, 32, 33, 64, 65, 1024}) layout_of(ranks);
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

// ---------------------------------------------------------------------------------------------------------------- failures

// All post at once, and another looks. One of them wins; whoever sees that the group has failed, a loser behind its post too, reads the winner's error whole.
void racing_posts(int rounds) {
  constexpr int kPosters = 4;
  std::vector<std::unique_ptr<Page>> pages;
  for (int i = 0; i < rounds; ++i) pages.push_back(std::make_unique<Page>(kPosters + 1));
  std::vector<std::array<Error, kPosters + 1>> read(static_cast<size_t>(rounds));
  std::vector<std::array<bool, kPosters>> won(static_cast<size_t>(rounds));
  std::barrier together(kPosters + 1);
  std::vector<std::thread> threads;
  for (int r = 0; r <= kPosters; ++r)
    threads.emplace_back([&, r] {
      for (int i = 0; i < rounds; ++i) {
        Board board = pages[i]->of(r);
        Error& seen = read[i][r];
        together.arrive_and_wait();
        if (r < kPosters) {
          won[i][r] = board.post(error_of(r, i));
          CHECK(!won[i][r] || board.failed());
        }
        await("the failure", [&] { return board.read_error(seen); });
        CHECK(board.failed());
      }
    });
  for (std::thread& t : threads) t.join();
  std::array<int, kPosters> wins{};
  for (int i = 0; i < rounds; ++i) {
    int winner = -1;
    for (int r = 0; r < kPosters; ++r) {
      if (!won[i][r]) continue;
      CHECK_EQ(winner, -1);
      winner = r;
      ++wins[r];
    }
    CHECK(winner >= 0);
    for (const Error& e : read[i]) CHECK(same(e, error_of(winner, i)));
    CHECK(!pages[i]->of(0).post(error_of(kPosters, i)));  // for good
    Error again;
    CHECK(pages[i]->of(0).read_error(again) && same(again, error_of(winner, i)));
  }
  std::printf("    won: %d %d %d %d\n", wins[0], wins[1], wins[2], wins[3]);
}

void nothing_failed() {
  Page page(2);
  Board board = page.of(0);
  Error e = error_of(1, 2);
  CHECK(!board.failed() && !board.read_error(e));
  CHECK(same(e, error_of(1, 2)));  // left as it was
  board.set_state(RankState::left);
  board.announce(call(0, 1));
  CHECK(!board.failed());
}

// The word that a poster sets to 1 before it writes and to 2 behind it.
std::atomic<uint32_t>& record_word(char* page) { return *reinterpret_cast<std::atomic<uint32_t>*>(page); }

// A poster that stands still between its two stores is waited for, and one that died there for a while only: its word does not stand, and nobody else's does.
void poster_in_between() {
  Page page(2);
  Board board = page.of(0);
  record_word(page.at()) = 1;
  CHECK(!board.failed());
  Error e;
  CHECK(!board.read_error(e));
  CHECK(!board.post(error_of(0, 0)));  // comes back
  CHECK(!board.failed() && !board.read_error(e));
  CHECK_EQ(record_word(page.at()).load(), 1u);
  record_word(page.at()) = 2;  // it goes on after all
  CHECK(board.failed() && board.read_error(e));
}

// The same by processes and a signal: rank 1 posts an error that lies across the end of what it may read, and so dies while it writes it down.
void poster_dies() {
  const size_t bytes = Board::bytes(2);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  auto* page = static_cast<char*>(at);
  std::fflush(nullptr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    const auto half = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* error = mmap(nullptr, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (error == MAP_FAILED || mprotect(static_cast<char*>(error) + half, half, PROT_NONE) != 0) _exit(2);
    Board(page, 2, 1).post(*reinterpret_cast<Error*>(static_cast<char*>(error) + half - 64));
    _exit(1);  // it should not have come so far
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFSIGNALED(status));
  CHECK_EQ(record_word(page).load(), 1u);
  Board survivor(page, 2, 0);
  Error e;
  CHECK(!survivor.failed() && !survivor.read_error(e));
  CHECK(!survivor.post(error_of(0, 0)));
  CHECK(!survivor.failed() && !survivor.read_error(e));
  munmap(at, bytes);
}

}  // namespace

int main() {
  start("board_test", 150);
  section("a poster dies");
  poster_dies();  // while there is one thread only
  section("a poster stands still");
  poster_in_between();
  section("layout");
  layout();
  section("states");
  states();
  section("the last calls");
  last_calls();
  section("no failure");
  nothing_failed();
  section("lines under rewriting");
  lines_under_rewriting(30'000);
  section("racing posts");
  racing_posts(500);
  return 0;
}
