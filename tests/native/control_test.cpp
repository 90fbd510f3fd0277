// Control sockets between processes of different nodes, without data: frames arrive whole and in order, what a rank says stands on the others' boards,
// a socket's end is a death, garbage ends a socket and nothing else.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "check.h"
#include "engine/control_plane.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

struct Pair {
  int a, b;
  Pair() {
    int s[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, s) == 0);
    a = s[0], b = s[1];
  }
};

// A loop with a thread that runs it, as the engine's poller does.
class Poller {
 public:
  Poller() {
    Error error;
    loop_ = EventLoop::open(error);
    CHECK(loop_ != nullptr);
    thread_ = std::thread([this] {
      while (!stop_) {
        pollfd p{loop_->fd(), POLLIN, 0};
        if (poll(&p, 1, 5) > 0) loop_->run_ready();
      }
    });
  }
  ~Poller() { halt(); }
  void halt() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  EventLoop& loop() { return *loop_; }

 private:
  std::unique_ptr<EventLoop> loop_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void until(const char* what, const std::function<bool()>& holds) {
  await(what, [&] {
    if (!holds()) usleep(200);
    return holds();
  });
}

// More than the kernel takes at once, from two threads, while the reader is slow.
void frames_in_order() {
  Poller poller;
  const Pair sockets;
  constexpr int kFrames = 600, kWriters = 2;
  std::array<std::atomic<int>, kWriters> next{};
  std::atomic<int> ends{0};
  const auto reader = ControlLink::start(
      poller.loop(), sockets.a,
      [&](FrameKind kind, const std::string& body) {
        uint32_t head[2];
        CHECK(kind == FrameKind::report);
        std::memcpy(head, body.data(), sizeof head);
        CHECK_EQ(next[head[0]]++, static_cast<int>(head[1]));
        CHECK(holds(body.data() + 8, body.size() - 8, head[0], head[1]));
        if (head[1] % 64 == 0) usleep(500);
      },
      [&](int) { ++ends; });
  CHECK(reader != nullptr);
  auto writer = ControlLink::start(poller.loop(), sockets.b, [](FrameKind, const std::string&) {}, [](int) {});
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < kWriters; ++w)
    threads.emplace_back([&, w] {
      Random random(w + 1);
      for (uint32_t k = 0; k < kFrames; ++k) {
        std::string body(8 + random.below(6000), 0);
        const uint32_t head[] = {w, k};
        std::memcpy(body.data(), head, sizeof head);
        fill(body.data() + 8, body.size() - 8, w, k);
        writer->send(FrameKind::report, body.data(), body.size());
      }
    });
  for (auto& t : threads) t.join();
  until("all frames", [&] { return next[0] == kFrames && next[1] == kFrames; });
  CHECK(writer->delivered());
  CHECK_EQ(ends.load(), 0);
  writer.reset();
  until("the end", [&] { return ends == 1; });
  reader->send(FrameKind::ask, "x", 1);  // to nobody: no signal, no harm
}

void garbage() {
  Poller poller;
  for (int kind = 0; kind < 3; ++kind) {
    const Pair sockets;
    std::atomic<int> code{-1};
    const auto link =
        ControlLink::start(poller.loop(), sockets.a, [](FrameKind, const std::string&) {}, [&](int c) { code = c; });
    const std::string junk = kind == 0 ? std::string(64, '\xff') : std::string("\x10\0\0\0\1\0\0\0half", 12);
    CHECK(send(sockets.b, junk.data(), junk.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(junk.size()));
    if (kind == 1) {
      usleep(20'000);
      CHECK_EQ(code.load(), -1);  // half a frame is no mistake yet
    }
    if (kind > 0) close(sockets.b);
    until("its end", [&] { return code >= 0; });
    CHECK_EQ(code.load(), kind == 0 ? EPROTO : 0);
    if (kind == 0) close(sockets.b);
  }
}

// Two processes of two nodes, rank 0 and rank 1 of a group.
struct Side {
  Poller poller;
  std::string key = to_hex(fresh_nonce());
  std::atomic<int> wakes{0};
  std::vector<char> memory;
  std::unique_ptr<ControlPlane> plane;
  std::shared_ptr<ControlGroup> group;

  Side() {
    plane = std::make_unique<ControlPlane>(poller.loop(), key, 3 * kSecond, [this] { ++wakes; });
  }
  ~Side() {
    poller.halt();
    group.reset();
    plane.reset();
  }
  std::shared_ptr<PeerProcess> reach(const Side& other) {
    std::shared_ptr<PeerProcess> peer;
    until("a peer", [&] {
      Error error;
      return (peer = plane->reach(other.key, {}, 0, error)) != nullptr;
    });
    return peer;
  }
  void make(const Nonce& topic, int rank) {
    memory.assign(Board::bytes(2) + 64, 0);
    char* const aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    group = std::make_shared<ControlGroup>(topic, rank, 2, Board(aligned, 2, rank, {rank != 0, rank != 1}), nullptr,
                                           [this] { ++wakes; });
  }
  Board& board() { return group->board(); }
};

void connect(Side& a, Side& b) {
  const Pair sockets;
  a.plane->adopt(sockets.a);
  b.plane->adopt(sockets.b);
}

Fingerprint call(uint64_t sequence, uint64_t bytes) {
  Fingerprint f;
  f.collective = Collective::all_reduce, f.dtype = DType::int64, f.op = ReduceOp::sum;
  f.sequence = sequence, f.bytes = bytes, f.schedule = 77;
  return f;
}

void what_is_said() {
  Side a, b;
  connect(a, b);
  const auto peer_b = a.reach(b);
  auto peer_a = b.reach(a);
  CHECK(peer_b->remote());
  const Nonce topic = fresh_nonce();
  // Rank 0 is there first: what it says comes too early for rank 1, which asks.
  a.make(topic, 0);
  a.group->join(1, peer_b);
  a.plane->enter(a.group);
  a.board().set_state(RankState::present);
  a.group->tell();
  b.make(topic, 1);
  b.group->join(0, peer_a);
  b.plane->enter(b.group);
  b.board().set_state(RankState::present);
  b.group->tell(), b.group->ask();
  until("rank 0", [&] { return b.board().state(0) == RankState::present; });
  until("rank 1", [&] { return a.board().state(1) == RankState::present; });

  section("calls");
  for (uint64_t k = 1; k <= 6; ++k) b.board().announce(call(k, 8 * k));
  Fingerprint f;
  CHECK(!a.board().find(1, 6, f));
  a.group->ask(true);
  until("an answer", [&] { return a.group->answered(); });
  for (uint64_t k = 3; k <= 6; ++k) CHECK(a.board().find(1, k, f) && f == call(k, 8 * k));
  CHECK(!a.board().find(1, 2, f));
  int64_t age = -1;
  CHECK_EQ(a.board().read(1, &age).sequence, uint64_t{6});
  CHECK(age >= 0 && age < 30 * kSecond);
  CHECK(!a.group->silent(1));

  section("a monitored barrier");
  RollCall roll_a = a.board().roll_call(), roll_b = b.board().roll_call();
  bool late = false;
  CHECK_EQ(roll_b.arrive(&late), 1u);
  b.group->tell();
  until("rank 1 at the barrier", [&] { return roll_a.absent(1) == std::vector<int>{0}; });
  b.group->ask_to_give_up(1);
  until("the verdict", [&] { return roll_b.verdict(1) == RollCall::Verdict::given_up; });
  CHECK(roll_a.verdict(1) == RollCall::Verdict::given_up);
  CHECK(roll_a.missed(1) == std::vector<int>{0} && roll_b.missed(1) == std::vector<int>{0});
  CHECK_EQ(roll_a.arrive(&late), 1u);
  CHECK(late);
  CHECK_EQ(roll_a.arrive(&late), 2u);
  a.group->tell();
  CHECK_EQ(roll_b.arrive(&late), 2u);
  b.group->tell();
  until("all at the barrier", [&] { return roll_a.absent(2).empty() && roll_b.absent(2).empty(); });
  roll_a.pass(2);
  a.group->tell_verdict();
  until("the next verdict", [&] { return roll_b.verdict(2) == RollCall::Verdict::passed; });

  section("a failure; the first cause stays");
  Error error;
  error.cause = Cause::mismatch, error.rank = 1;
  std::snprintf(error.text, sizeof error.text, "the first");
  CHECK(a.board().post(error));
  a.group->tell_failure(error);
  until("the failure", [&] { return b.board().failed(); });
  Error other = error;
  std::snprintf(other.text, sizeof other.text, "the second");
  CHECK(!b.board().post(other));
  CHECK(b.board().read_error(other));
  CHECK_EQ(std::string(other.text), "the first");

  section("leaving, and who asks afterwards");
  b.board().announce(call(7, 56));
  b.board().set_state(RankState::left);
  b.group->tell();
  until("rank 1 gone", [&] { return a.board().state(1) == RankState::left; });
  CHECK_EQ(a.board().read(1, nullptr).sequence, uint64_t{7});  // its last calls come with it
  b.plane->leave(*b.group);
  CHECK(!peer_a->dead && !peer_b->dead);

  section("death");
  b.poller.halt();
  peer_a.reset();
  b.group.reset();
  b.plane.reset();
  until("the death", [&] { return peer_b->dead.load(); });
  Error none;
  CHECK(a.plane->reach(b.key, {}, 0, none) == nullptr);
}

// A process that is not looked after answers nothing; it is asked once, and never passes for dead.
void a_stopped_one() {
  Side a, b;
  connect(a, b);
  const auto peer_b = a.reach(b), peer_a = b.reach(a);
  const Nonce topic = fresh_nonce();
  a.make(topic, 0), b.make(topic, 1);
  a.group->join(1, peer_b), b.group->join(0, peer_a);
  a.plane->enter(a.group), b.plane->enter(b.group);
  a.board().mirror_state(1, RankState::present);
  b.poller.halt();
  for (int i = 0; i < 20; ++i) a.group->ask(true), usleep(30'000);
  CHECK(a.group->silent(1));
  CHECK(a.group->answered());  // nobody else owes an answer
  CHECK(!peer_b->dead);
}

// A rank that asks about a group that another rank has left already is told so.
void late_question() {
  Side a, b;
  connect(a, b);
  const auto peer_b = a.reach(b);
  b.reach(a);
  const Nonce topic = fresh_nonce();
  b.make(topic, 1);
  b.plane->enter(b.group);
  b.plane->leave(*b.group);
  a.make(topic, 0);
  a.group->join(1, peer_b);
  a.plane->enter(a.group);
  a.group->ask();
  until("the answer", [&] { return a.board().state(1) == RankState::left; });
}

}  // namespace

int main() {
  start("control_test", 120);
  section("frames in order");
  frames_in_order();
  section("garbage");
  garbage();
  section("what is said");
  what_is_said();
  section("a stopped one");
  a_stopped_one();
  section("a late question");
  late_question();
  return 0;
}
