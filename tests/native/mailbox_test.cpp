// Point-to-point messages between ranks of this process: tags in any order, early messages, large ones, any source, and
// what goes wrong.
#include "engine/mailbox.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "kinds.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr size_t kEager = 4096;  // as large as a slot, as in a group

struct Transfer {
  RequestPtr request;
  std::vector<char> data;
  bool done() const { return request->done(); }
};
using TransferPtr = std::unique_ptr<Transfer>;

// One rank's mailbox with what a Communicator does around it.
class Box {
 public:
  Box(World& world, int rank, int ranks, size_t early) : mailbox_(world.rank(rank), rank, ranks, kEager, early) {}

  TransferPtr send(int peer, int tag, size_t bytes, uint64_t k) {
    auto t = std::make_unique<Transfer>();
    t->data.resize(bytes);
    fill(t->data.data(), bytes, static_cast<uint64_t>(tag), k);
    post(*t, true, peer, tag);
    return t;
  }
  TransferPtr recv(int peer, int tag, size_t bytes) {
    auto t = std::make_unique<Transfer>();
    t->data.resize(bytes);
    post(*t, false, peer, tag);
    return t;
  }
  bool drive(Stall* why = nullptr) {
    Ended ended;
    Stall stall;
    const bool moved = mailbox_.drive([this](int r) { return gone.count(r) > 0; }, ended, stall);
    for (const RequestPtr& r : ended) r->complete();
    if (why) *why = stall;
    return moved;
  }
  void fail_all(const Error& error) {
    Ended ended;
    CHECK(mailbox_.fail(error, ended));
    for (const RequestPtr& r : ended) r->complete();
  }
  Mailbox& mailbox() { return mailbox_; }
  std::set<int> gone;

 private:
  void post(Transfer& t, bool send, int peer, int tag) {
    const Fingerprint call{send ? Collective::send : Collective::recv};
    t.request = std::make_shared<Request>(call, kNoDeadline, nullptr);
    mailbox_.post({t.request, send, t.data.data(), t.data.size(), peer, tag});
  }
  Mailbox mailbox_;
};

const Kind* kind = &kShm;  // what the ranks are connected by

struct Ranks {
  explicit Ranks(int n, size_t early = Mailbox::kEarlyBytes) : world(kind->make({n})) {
    for (int r = 0; r < n; ++r) boxes.push_back(std::make_unique<Box>(*world, r, n, early));
  }
  Box& operator[](int r) { return *boxes[r]; }
  // All in turn until nobody moves.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& b : boxes) moved |= b->drive();
    }
  }
  std::unique_ptr<World> world;
  std::vector<std::unique_ptr<Box>> boxes;
};

void check_received(const Transfer& t, int tag, uint64_t k, int source) {
  CHECK(t.done());
  CHECK(t.request->error() == nullptr);
  CHECK_EQ(t.request->source, source);
  CHECK(holds(t.data.data(), t.data.size(), static_cast<uint64_t>(tag), k));
}

// In a header, at its border, in the line's, eager, at the border to announced, announced.
const std::vector<size_t> kSizes = {0, 1, 32, 33, 56, 57, 1000, 4095, 4096, 4097, 5000, 100'000};

// Receives come in the opposite order of the sends, before and after them.
void tags_out_of_order() {
  for (bool sends_first : {true, false}) {
    Ranks ranks(2);
    std::vector<TransferPtr> sends, recvs(kSizes.size());
    const auto send_all = [&] {
      for (size_t i = 0; i < kSizes.size(); ++i) sends.push_back(ranks[0].send(1, static_cast<int>(i), kSizes[i], i));
      ranks.settle();
    };
    if (sends_first) send_all();
    for (size_t i = kSizes.size(); i-- > 0;) {
      recvs[i] = ranks[1].recv(0, static_cast<int>(i), kSizes[i]);
      if (i % 3 == 0) ranks.settle();
    }
    if (!sends_first) send_all();
    ranks.settle();
    for (size_t i = 0; i < kSizes.size(); ++i) {
      check_received(*recvs[i], static_cast<int>(i), i, 0);
      CHECK(sends[i]->done());
    }
    CHECK(ranks[0].mailbox().idle());
    CHECK(ranks[1].mailbox().idle());
    CHECK_EQ(ranks[0].mailbox().pending_sends(), 0);
  }
}

// Messages of one tag are received in the order they were sent, whatever their sizes.
void order_within_a_tag() {
  Ranks ranks(2);
  std::vector<TransferPtr> sends, recvs;
  for (size_t i = 0; i < kSizes.size(); ++i) sends.push_back(ranks[0].send(1, 5, kSizes[kSizes.size() - 1 - i], i));
  ranks.settle();
  for (size_t i = 0; i < kSizes.size(); ++i) recvs.push_back(ranks[1].recv(0, 5, kSizes[kSizes.size() - 1 - i]));
  ranks.settle();
  for (size_t i = 0; i < kSizes.size(); ++i) check_received(*recvs[i], 5, i, 0);
}

// Small messages leave without their receive; large ones wait for it.
void eager_and_announced() {
  Ranks ranks(2);
  auto small = ranks[0].send(1, 1, kEager, 0), large = ranks[0].send(1, 2, kEager + 1, 1);
  auto other = ranks[1].recv(0, 3, 1);  // nothing is read where nobody waits for anything
  ranks.settle();
  CHECK(small->done());
  CHECK(!large->done());
  auto second = ranks[1].recv(0, 2, kEager + 1);
  ranks.settle();
  check_received(*second, 2, 1, 0);
  CHECK(large->done());
  auto first = ranks[1].recv(0, 1, kEager);
  ranks.settle();
  check_received(*first, 1, 0, 0);
}

void to_itself() {
  Ranks ranks(2);
  auto first = ranks[0].recv(0, 1, 10'000);
  auto send = ranks[0].send(0, 1, 10'000, 3), early = ranks[0].send(0, 2, 8, 4);
  ranks.settle();
  check_received(*first, 1, 3, 0);
  CHECK(send->done());
  CHECK(!early->done());
  auto any = ranks[0].recv(kAnySource, 2, 8);
  ranks.settle();
  check_received(*any, 2, 4, 0);
}

// With messages of two ranks waiting, receives from any source serve both by turns: nobody is served alone.
void any_source() {
  for (size_t bytes : {size_t{20}, size_t{3000}, size_t{6000}}) {
    constexpr uint64_t kEach = 50;
    Ranks ranks(3);
    std::vector<TransferPtr> sends;
    for (uint64_t k = 0; k < kEach; ++k)
      for (int r : {1, 2}) sends.push_back(ranks[r].send(0, 7, bytes, k));
    auto wake = ranks[0].recv(kAnySource, 99, 1);
    ranks.settle();
    uint64_t next[3] = {};
    for (uint64_t i = 0; i < 2 * kEach; ++i) {
      auto got = ranks[0].recv(kAnySource, 7, bytes);
      ranks.settle();
      CHECK(got->done());
      const int from = got->request->source;
      CHECK(from == 1 || from == 2);
      check_received(*got, 7, next[from]++, from);
      if (next[1] < kEach && next[2] < kEach) CHECK(next[1] < next[2] + 4 && next[2] < next[1] + 4);
    }
    CHECK_EQ(next[1], kEach);
  }
}

void posted_order() {
  Ranks ranks(2);
  auto any = ranks[0].recv(kAnySource, 1, 8), named = ranks[0].recv(1, 1, 8);
  auto first = ranks[1].send(0, 1, 8, 1), second = ranks[1].send(0, 1, 8, 2);
  ranks.settle();
  check_received(*any, 1, 1, 1);
  check_received(*named, 1, 2, 1);
}

// Sizes that disagree are found whichever comes first, and say both sizes.
void sizes_disagree() {
  for (size_t sent : {size_t{8}, size_t{2000}, size_t{9000}})
    for (bool early : {true, false}) {
      Ranks ranks(2);
      TransferPtr recv;
      if (!early) recv = ranks[1].recv(0, 4, 100);
      auto wake = ranks[1].recv(0, 99, 1);
      auto send = ranks[0].send(1, 4, sent, 1);
      Stall why;
      for (int i = 0; i < 10 && !why.mismatch; ++i) {
        ranks[0].drive();
        if (early && i == 5) recv = ranks[1].recv(0, 4, 100);
        ranks[1].drive(&why);
      }
      CHECK(why.mismatch);
      CHECK(why.request == recv->request);
      CHECK_EQ(why.waits_for, 0);
      CHECK_EQ(why.sent_bytes, sent);
      CHECK_EQ(why.expected_bytes, size_t{100});
      CHECK(!recv->done());
    }
}

// Messages nobody receives are kept up to a bound, then their sender waits; nothing is lost.
void early_bound() {
  constexpr uint64_t kMessages = 6000;
  constexpr size_t kKept = 500, kBooks = 128;
  Ranks ranks(2, kKept * (16 + kBooks));
  auto wake = ranks[1].recv(0, 99, 1);
  std::vector<TransferPtr> sends;
  for (uint64_t k = 0; k < kMessages; ++k) sends.push_back(ranks[0].send(1, 1, 16, k));
  ranks.settle();
  size_t sent = 0;
  for (const TransferPtr& s : sends) sent += s->done();
  CHECK(sent >= kKept);
  CHECK(sent < kKept + 100);  // those, and what the slots hold
  for (uint64_t k = 0; k < kMessages; ++k) {
    auto r = ranks[1].recv(0, 1, 16);
    ranks.settle();
    check_received(*r, 1, k, 0);
  }
  for (const TransferPtr& s : sends) CHECK(s->done());
}

// As many messages as nobody wants yet: what another one waits for comes through behind them.
void grants_behind_early_messages() {
  constexpr uint64_t kMessages = 10'000;
  Ranks ranks(2);
  auto last = ranks[1].recv(0, 3, 8);
  std::vector<TransferPtr> sends;
  for (uint64_t k = 0; k < kMessages; ++k) sends.push_back(ranks[0].send(1, 1, 16, k));
  auto large = ranks[0].recv(1, 2, 20 * kEager);
  ranks.settle();
  auto announced = ranks[1].send(0, 2, 20 * kEager, 0);
  ranks.settle();
  check_received(*large, 2, 0, 1);
  auto said = ranks[0].send(1, 3, 8, 0);
  ranks.settle();
  check_received(*last, 3, 0, 0);
  for (uint64_t k = 0; k < kMessages; ++k) {
    auto r = ranks[1].recv(0, 1, 16);
    ranks.settle();
    check_received(*r, 1, k, 0);
  }
}

// A peer that does no more: the request that needs it and the rank are named, in every state a message can be in.
void peers_gone() {
  const auto names = [](Ranks& ranks, int rank, const TransferPtr& expected) {
    Stall why;
    while (ranks[rank].drive(&why)) continue;
    CHECK(why.request == expected->request);
    CHECK_EQ(why.waits_for, 1);
  };
  for (int source : {1, kAnySource}) {  // the data of a large message stops half way
    Ranks ranks(3);
    auto recv = ranks[0].recv(source, 1, 100'000);
    auto send = ranks[1].send(0, 1, 100'000, 0);
    for (int i = 0; i < 6; ++i) ranks[i % 2].drive();
    CHECK(!recv->done());
    ranks[0].gone = {1};
    names(ranks, 0, recv);
  }
  {  // sends wait: announced, and never read
    Ranks ranks(2);
    auto send = ranks[0].send(1, 1, 100'000, 0);
    ranks[0].gone = {1};
    names(ranks, 0, send);
  }
  {  // any source: only when nobody is left
    Ranks ranks(3);
    auto recv = ranks[0].recv(kAnySource, 1, 8);
    ranks[0].gone = {2};
    Stall why;
    CHECK(!ranks[0].drive(&why));
    CHECK(why.request == nullptr);
    ranks[0].gone = {1, 2};
    names(ranks, 0, recv);
  }
  {  // what it sent before it went still counts
    Ranks ranks(2);
    auto send = ranks[1].send(0, 1, 2000, 6);
    ranks[1].drive();
    ranks[0].gone = {1};
    auto recv = ranks[0].recv(1, 1, 2000);
    ranks.settle();
    check_received(*recv, 1, 6, 1);
  }
}

// After a failure everything ends with its error, in whatever state it was, and what still comes in is not looked at.
void failure() {
  Ranks ranks(2);
  std::vector<TransferPtr> all;
  for (size_t bytes : kSizes) {
    all.push_back(ranks[0].recv(1, 1, bytes));
    all.push_back(ranks[0].send(1, 2, bytes, 0));
  }
  auto other = ranks[1].send(0, 1, 0, 0), large = ranks[1].send(0, 9, 100'000, 0), recv = ranks[1].recv(0, 2, 0);
  auto streamed = ranks[0].recv(1, 9, 100'000);
  for (int i = 0; i < 8; ++i) ranks[i % 2].drive();
  all.push_back(std::move(streamed));
  Error error;
  error.cause = Cause::aborted;
  ranks[0].fail_all(error);
  int failed = 0;
  for (const TransferPtr& t : all) {
    CHECK(t->done());
    failed += t->request->error() != nullptr;
  }
  CHECK(failed > static_cast<int>(kSizes.size()));
  CHECK(ranks[0].mailbox().idle());
  auto late = ranks[0].recv(1, 9, 100'000);  // posted by a thread that has not heard of it
  ranks.settle();
  CHECK(!late->done());
  ranks[0].fail_all(error);
  CHECK(late->done());
  CHECK(late->request->error() != nullptr);
}

// All ranks send to all, each on its thread: random sizes and tags, received in an order of the receiver's own.
void random_traffic() {
  constexpr int kRanks = 3, kTags = 3;
  constexpr uint64_t kMessages = 120;  // from each to each
  Ranks ranks(kRanks);
  const auto size_of = [](int from, int to, int tag, uint64_t k) {
    Random r(static_cast<uint64_t>(from * 100 + to * 10 + tag) * 1000 + k);
    return r.one_in(6) ? r.below(60'000) : r.below(200);
  };
  const auto body = [&](int me) {
    Box& box = ranks[me];
    Random random(static_cast<uint64_t>(me) + 50);
    std::vector<TransferPtr> sends;
    struct Pending {
      TransferPtr transfer;
      int from, tag;
      uint64_t k;
    };
    std::vector<Pending> recvs;
    uint64_t sent[kRanks][kTags] = {}, asked[kRanks][kTags] = {};
    uint64_t left = 2 * kMessages * kRanks;
    while (left > 0) {
      const int peer = static_cast<int>(random.below(kRanks)), tag = static_cast<int>(random.below(kTags));
      uint64_t& s = sent[peer][tag];
      uint64_t& a = asked[peer][tag];
      if (random.one_in(2) && s < kMessages / kTags) {
        sends.push_back(box.send(peer, tag, size_of(me, peer, tag, s), s));
        ++s, --left;
      } else if (a < kMessages / kTags) {
        recvs.push_back({box.recv(peer, tag, size_of(peer, me, tag, a)), peer, tag, a});
        ++a, --left;
      }
      if (random.one_in(4)) box.drive();
    }
    await("all messages", [&] {
      if (!box.drive()) std::this_thread::yield();
      return box.mailbox().idle();
    });
    for (const Pending& p : recvs) check_received(*p.transfer, p.tag, p.k, p.from);
    for (const TransferPtr& t : sends) CHECK(t->done());
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) threads.emplace_back(body, r);
  for (std::thread& t : threads) t.join();
}

// Large messages both ways at once between threads, while several threads share each mailbox.
void both_ways() {
  Ranks ranks(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    for (int lane = 0; lane < 2; ++lane)
      threads.emplace_back([&, r, lane] {
        for (uint64_t k = 0; k < 12; ++k) {
          auto send = ranks[r].send(1 - r, lane, 300'000, k);
          auto recv = ranks[r].recv(1 - r, lane, 300'000);
          await("a large message", [&] {
            ranks[r].drive();
            return send->done() && recv->done();
          });
          check_received(*recv, lane, k, 1 - r);
        }
      });
  for (std::thread& t : threads) t.join();
}

}  // namespace

int main() {
  start("mailbox_test", 120);
  const std::pair<const char*, void (*)()> tests[] = {
      {"tags out of order", tags_out_of_order},
      {"order within a tag", order_within_a_tag},
      {"eager and announced", eager_and_announced},
      {"to itself", to_itself},
      {"any source", any_source},
      {"posted order", posted_order},
      {"sizes disagree", sizes_disagree},
      {"bound of early messages", early_bound},
      {"grants behind early messages", grants_behind_early_messages},
      {"peers gone", peers_gone},
      {"failure", failure},
      {"random traffic", random_traffic},
      {"both ways", both_ways},
  };
  for (const auto& [name, test] : tests) {
    section(name);
    test();
  }
  for (const Kind* wire : {&kTcp, &kMixed, &kVerbs, &kMixedVerbs}) {
    kind = wire;
    section((std::string("traffic over ") + wire->name).c_str());
    random_traffic();
    both_ways();
  }
  return 0;
}
