// The interpreter over connections inside this process: right results for all sizes, resumable at every step, other
// calls' slots refused.
#include "core/interpreter.h"

#include <functional>
#include <memory>
#include <vector>

#include "kinds.h"
#include "programs.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr size_t kPiece = 64;  // elements: small, so that a few thousand make many loops

using Make = std::function<Packed(int ranks, int rank)>;
using Values = std::vector<int64_t>;

// Element i of chunk `chunk` on `rank`.
int64_t value(int rank, int chunk, size_t i) {
  return int64_t{1000003} * rank + 7919 * chunk + static_cast<int64_t>(i * i);
}

// One rank's end of a group: the program with its connections.
class Rank {
 public:
  Rank(World& world, int ranks, int rank, const Make& make) {
    const Packed table = make(ranks, rank);
    CHECK_EQ(Program::load(table.data(), table.size(), program_), "");
    Connections& c = world.rank(rank);
    for (const ConnectionRef& s : program_.senders) senders_.push_back(c.sender(s.kind, 0, s.peer));
    for (const ConnectionRef& r : program_.receivers) receivers_.push_back(c.receiver(r.kind, 0, r.peer));
  }
  const Program& program() const { return program_; }

  std::unique_ptr<Interpreter> start(std::vector<Chunk> in, std::vector<Chunk> out, uint32_t tag,
                                     bool sized_tags = false) {
    Run run;
    run.program = &program_;
    run.in = std::move(in), run.out = std::move(out);
    run.senders = senders_.data(), run.receivers = receivers_.data();
    run.dtype = DType::int64, run.element = sizeof(int64_t), run.piece = kPiece;
    run.reduce = run.finish = reduce_function(DType::int64, ReduceOp::sum);
    run.tag = tag, run.sized_tags = sized_tags;
    return std::make_unique<Interpreter>(run);
  }

 private:
  Program program_;
  std::vector<Sender*> senders_;
  std::vector<Receiver*> receivers_;
};

struct Buffers {
  std::vector<Values> in, out;
  static std::vector<Chunk> chunks(std::vector<Values>& values) {
    std::vector<Chunk> all;
    for (Values& v : values) all.push_back({reinterpret_cast<char*>(v.data()), v.size()});
    return all;
  }
};

using Lengths = std::function<size_t(int chunk)>;

Buffers buffers(const Program& p, int rank, const Lengths& in, const Lengths& out) {
  Buffers b;
  for (int c = 0; c < p.nchunks_in; ++c) {
    b.in.emplace_back(in(c));
    for (size_t i = 0; i < b.in.back().size(); ++i) b.in.back()[i] = value(rank, c, i);
  }
  for (int c = 0; c < p.nchunks_out; ++c) b.out.emplace_back(out(c), -1);
  return b;
}

void run_to_end(Interpreter& run) {
  await("the end of a program", [&] {
    const Progress p = run.advance();
    CHECK(p != Progress::failed);
    return p == Progress::done;
  });
}

const Kind* kind = &kShm;  // what the ranks are connected by

// All ranks on their own threads; `check` sees each rank's buffers when its program has ended.
struct Job {
  Make make;
  std::function<Buffers(const Program&, int rank, size_t size)> buffers;
  std::function<void(const Program&, int rank, size_t size, const Buffers&)> check;
};

void threads(const Job& job, int ranks, const std::vector<size_t>& sizes, bool sized_tags = false) {
  auto world = kind->make({ranks});
  std::vector<std::thread> all;
  for (int r = 0; r < ranks; ++r)
    all.emplace_back([&, r] {
      Rank rank(*world, ranks, r, job.make);
      uint32_t tag = 1;
      for (size_t size : sizes) {
        Buffers b = job.buffers(rank.program(), r, size);
        const Buffers before = b;
        auto run = rank.start(Buffers::chunks(b.in), Buffers::chunks(b.out), tag++, sized_tags);
        run_to_end(*run);
        CHECK(b.in == before.in);
        job.check(rank.program(), r, size, b);
      }
    });
  for (std::thread& t : all) t.join();
}

void check_sums(const Program& p, int, size_t, const Buffers& b) {
  for (int c = 0; c < p.nchunks_out; ++c)
    for (size_t i = 0; i < b.out[c].size(); ++i) {
      int64_t sum = 0;
      for (int r = 0; r < p.nranks; ++r) sum += value(r, c, i);
      CHECK_EQ(b.out[c][i], sum);
    }
}

// Chunks of one message: all as long, but the last ones shorter or empty.
Lengths cut_into(size_t size, int parts) {
  const size_t part = (size + parts - 1) / parts;
  return [=](int c) { return std::min(part, size - std::min(size, c * part)); };
}

Job all_reduce(Make make) {
  const auto make_buffers = [](const Program& p, int rank, size_t size) {
    const Lengths lengths = cut_into(size, p.nchunks_in);
    return buffers(p, rank, lengths, lengths);
  };
  return {std::move(make), make_buffers, check_sums};
}

// Chunk c has c * 37 elements more than size: each rank loops as often as its own chunks need.
Job uneven_all_gather() {
  const auto length = [](size_t size, int c) { return size + static_cast<size_t>(c) * 37; };
  return {all_gather,
          [=](const Program& p, int rank, size_t size) {
            return buffers(p, rank, [=](int) { return length(size, rank); }, [=](int c) { return length(size, c); });
          },
          [](const Program& p, int, size_t, const Buffers& b) {
            for (int c = 0; c < p.nchunks_out; ++c)
              for (size_t i = 0; i < b.out[c].size(); ++i) CHECK_EQ(b.out[c][i], value(c, 0, i));
          }};
}

// From rank s to rank d go (s * 50 + d * 3) * size elements: some pairs nothing.
Job uneven_all_to_all() {
  const auto length = [](size_t size, int from, int to) {
    return (static_cast<size_t>(from) * 50 + static_cast<size_t>(to) * 3) * size;
  };
  return {all_to_all,
          [=](const Program& p, int rank, size_t size) {
            return buffers(
                p, rank, [=](int c) { return length(size, rank, c); }, [=](int c) { return length(size, c, rank); });
          },
          [](const Program& p, int rank, size_t, const Buffers& b) {
            for (int c = 0; c < p.nchunks_out; ++c)
              for (size_t i = 0; i < b.out[c].size(); ++i) CHECK_EQ(b.out[c][i], value(c, rank, i));
          }};
}

Job broadcast_job(int root) {
  return {[root](int n, int rank) { return broadcast(n, rank, root); },
          [](const Program& p, int rank, size_t size) {
            const auto length = [=](int) { return size; };
            return buffers(p, rank, length, length);
          },
          [root](const Program&, int, size_t, const Buffers& b) {
            for (size_t i = 0; i < b.out[0].size(); ++i) CHECK_EQ(b.out[0][i], value(root, 0, i));
          }};
}

const std::vector<size_t> kSizes = {0, 1, 7, 8, 63, 64, 65, 128, 1, 500, 2, 1000, 3000, 0, 5, 64 * 40 + 1};

void results() {
  for (int n = 1; n <= 4; ++n) {
    threads(all_reduce(one_shot), n, kSizes);
    for (int lag : {0, 1})
      threads(all_reduce([lag](int ranks, int rank) { return ring(ranks, rank, lag); }), n, kSizes);
    for (bool sized_tags : {false, true}) {
      threads(uneven_all_gather(), n, kSizes, sized_tags);
      threads(uneven_all_to_all(), n, {0, 1, 3, 10, 1, 0, 2}, sized_tags);
    }
    threads(broadcast_job(n - 1), n, kSizes);
  }
}

// The output is the input's memory.
void in_place() {
  constexpr int kRanks = 3;
  for (const Make& make : {Make(one_shot), Make([](int n, int rank) { return ring(n, rank, 1); })}) {
    auto world = kind->make({kRanks});
    std::vector<std::thread> all;
    for (int r = 0; r < kRanks; ++r)
      all.emplace_back([&, r] {
        Rank rank(*world, kRanks, r, make);
        for (size_t size : kSizes) {
          const Lengths lengths = cut_into(size, rank.program().nchunks_in);
          Buffers b = buffers(rank.program(), r, lengths, lengths);
          run_to_end(*rank.start(Buffers::chunks(b.in), Buffers::chunks(b.in), 1));
          b.out.swap(b.in);
          check_sums(rank.program(), r, size, b);
        }
      });
    for (std::thread& t : all) t.join();
  }
}

// One thread drives all ranks in turn, in an order that changes: every one gets blocked, says for whom, and goes on
// from there.
void resumes() {
  constexpr int kRanks = 4;
  const size_t size = kPiece * 23 + 5;
  const Job job = all_reduce([](int n, int rank) { return ring(n, rank, 1); });
  auto world = kShm.make({kRanks});
  Random random(3);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < kRanks; ++r) ranks.push_back(std::make_unique<Rank>(*world, kRanks, r, job.make));
  for (uint32_t round = 1; round <= 20; ++round) {
    std::vector<Buffers> b;
    std::vector<std::unique_ptr<Interpreter>> runs;
    for (int r = 0; r < kRanks; ++r) b.push_back(job.buffers(ranks[r]->program(), r, size));
    for (int r = 0; r < kRanks; ++r)
      runs.push_back(ranks[r]->start(Buffers::chunks(b[r].in), Buffers::chunks(b[r].out), round));
    std::vector<bool> done(kRanks);
    int blocked = 0, left = kRanks;
    while (left > 0) {
      const int r = static_cast<int>(random.below(kRanks));
      if (done[r]) continue;
      const Progress p = runs[r]->advance();
      CHECK(p != Progress::failed);
      if (p == Progress::done) {
        done[r] = true, --left;
        continue;
      }
      if (p == Progress::blocked) ++blocked;
      CHECK_EQ(runs[r]->waits_for(), (r + (runs[r]->waits_to_send() ? 1 : kRanks - 1)) % kRanks);
      const int step = runs[r]->step();
      CHECK(runs[r]->advance() == Progress::blocked);  // nobody else moved: it stays where it is
      CHECK_EQ(runs[r]->step(), step);
    }
    CHECK(blocked > 0);
    for (int r = 0; r < kRanks; ++r) job.check(ranks[r]->program(), r, size, b[r]);
  }
}

// Rank 0 sends `sent` elements, rank 1 expects `expected`: it must refuse what comes.
uint32_t refused_tag(size_t sent, size_t expected, uint32_t sent_tag, uint32_t expected_tag, bool sized) {
  auto world = kShm.make({2});
  Rank a(*world, 2, 0, all_to_all), b(*world, 2, 1, all_to_all);
  const Lengths eight = [](int) { return size_t{8}; };
  Buffers from = buffers(a.program(), 0, [=](int c) { return c == 1 ? sent : 8; }, eight);
  Buffers to = buffers(b.program(), 1, eight, [=](int c) { return c == 0 ? expected : 8; });
  auto sends = a.start(Buffers::chunks(from.in), Buffers::chunks(from.out), sent_tag, sized);
  auto receives = b.start(Buffers::chunks(to.in), Buffers::chunks(to.out), expected_tag, sized);
  sends->advance();
  for (int again = 0; again < 2; ++again) CHECK(receives->advance() == Progress::failed);
  CHECK_EQ(receives->waits_for(), 0);
  CHECK(receives->error() == nullptr);
  for (int64_t v : to.out[0]) CHECK_EQ(v, -1);
  return receives->foreign_tag();
}

// A slot of another call is not taken for this one's, nor one of another size where the pair's size is part of the tag: not even nothing for something.
void foreign_slots() {
  CHECK_EQ(refused_tag(8, 8, 77, 78, false), 77u);
  refused_tag(8, 9, 77, 77, true);
  refused_tag(8, 0, 77, 77, true);
  refused_tag(0, 8, 77, 77, true);
}

// No memory for slots: the connection's own error comes through.
void broken_connection() {
  auto world = kShm.make({2, 1, 4, 1 << 20, 1 << 20, 4096, 64 << 10});
  Rank a(*world, 2, 0, one_shot);
  const Lengths length = [](int) { return kPiece; };
  Buffers b = buffers(a.program(), 0, length, length);
  auto run = a.start(Buffers::chunks(b.in), Buffers::chunks(b.out), 1);
  CHECK(run->advance() == Progress::failed);
  CHECK(run->error() != nullptr);
  CHECK(run->error()->cause == Cause::no_memory);
}

}  // namespace

int main() {
  start("interpreter_test", 120);
  section("results, n = 1..4");
  results();
  section("in place");
  in_place();
  for (const Kind* other : {&kTcp, &kMixed, &kVerbs, &kMixedVerbs}) {
    kind = other;
    section((std::string("the same over ") + other->name).c_str());
    results();
    in_place();
  }
  kind = &kShm;
  section("resumes where it stood");
  resumes();
  section("slots of other calls");
  foreign_slots();
  section("a broken connection");
  broken_connection();
  return 0;
}
