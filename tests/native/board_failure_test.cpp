// The first failure on a node's board: of racing ranks one wins, its error is read whole or not at all, and one that dies while it writes holds nobody up.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "board_page.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

// Every field follows from who posts it and when; no byte of the text is 0 but the last.
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

// Threads that leave meet() within nanoseconds of each other, where processors are free.
class Meeting {
 public:
  explicit Meeting(uint64_t threads) : threads_(threads), patience_(threads > 2 ? 100 : 20'000) {}
  void meet(uint64_t& times) {
    const uint64_t all = threads_ * ++times;
    ++arrived_;
    for (int looks = 0; arrived_ < all; ++looks)
      if (looks > patience_) sched_yield();
  }

 private:
  const uint64_t threads_;
  const int patience_;  // with more threads than processors somebody has to make room
  std::atomic<uint64_t> arrived_{0};
};

// All post at once, and others look. One of them wins; whoever sees that the group has failed, a loser behind its post too, reads the winner's error whole.
// As many rounds as a few seconds give: two ranks race closest, by themselves.
void racing_posts(int posters, int lookers, int64_t ns) {
  constexpr int kLeast = 200;  // rounds
  const int all = posters + lookers;
  Page page(all);
  std::vector<Error> seen(static_cast<size_t>(all));
  std::vector<char> won(static_cast<size_t>(posters));
  std::vector<int> wins(static_cast<size_t>(posters));
  bool more = true;
  const auto judge = [&](int round) {
    const auto winner = static_cast<int>(std::find(won.begin(), won.end(), true) - won.begin());
    CHECK_EQ(std::count(won.begin(), won.end(), true), 1);
    ++wins[winner];
    const Error right = error_of(winner, round);
    for (const Error& e : seen) CHECK(same(e, right));
    Error again;
    CHECK(!page.of(0).post(error_of(posters, round)));  // for good
    CHECK(page.of(0).read_error(again) && same(again, right));
    std::memset(page.at(), 0, kStates);
  };
  Meeting meeting(static_cast<uint64_t>(all));
  const int64_t until = now_ns() + ns;
  std::vector<std::thread> threads;
  for (int r = 0; r < all; ++r)
    threads.emplace_back([&, r] {
      Board board = page.of(r);
      uint64_t met = 0;
      for (int round = 0; more; ++round) {
        const Error mine = error_of(r, round);
        meeting.meet(met);
        if (r < posters) won[r] = board.post(mine);
        await("the failure", [&] { return board.read_error(seen[r]); });
        CHECK(board.failed());
        meeting.meet(met);
        if (r == 0) judge(round), more = round < kLeast || now_ns() < until;
        meeting.meet(met);
      }
    });
  for (std::thread& t : threads) t.join();
  std::printf("    won:");
  for (int n : wins) std::printf(" %d", n);
  std::printf("\n");
}

void nothing_failed() {
  Page page(2);
  Board board = page.of(0);
  Error e = error_of(1, 2);
  CHECK(!board.failed() && !board.read_error(e));
  CHECK(same(e, error_of(1, 2)));  // left as it was
  board.set_state(RankState::left);
  Fingerprint call;
  call.sequence = 1;
  board.announce(call);
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
  start("board_failure_test", 150);
  section("a poster dies");
  poster_dies();  // while there is one thread only
  section("a poster stands still");
  poster_in_between();
  section("no failure");
  nothing_failed();
  section("racing posts");
  racing_posts(2, 0, 1'500'000'000);
  racing_posts(4, 1, 1'000'000'000);
  return 0;
}
