// Programs whose readers are shown registered memory: right results in every mix of ranks that lend and ranks that do not, and what was lent
// is the caller's again, to scribble on, the moment its program has ended.
#include "lent_programs.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

struct Case {
  const char* name;
  Make make;
  bool reduces;
  bool lends_in_place;
};

const std::vector<Case> kCases = {
    {"one_shot", [](int n, int r) { return one_shot(n, r); }, true, false},
    {"ring", [](int n, int r) { return ring(n, r, 0); }, true, true},
    {"ring with lag", [](int n, int r) { return ring(n, r, 1); }, true, true},
    {"all_gather", all_gather, false, true},
    {"all_to_all", all_to_all, false, true},
};

int64_t wanted(const Case& c, const Program& p, int rank, int chunk, size_t i) {
  if (!c.reduces) return lent_value(chunk, p.collective == Collective::all_to_all ? rank : 0, i);
  int64_t sum = 0;
  for (int r = 0; r < p.nranks; ++r) sum += lent_value(r, chunk, i);
  return sum;
}

void scribble(const std::vector<Chunk>& chunks) {
  for (const Chunk& c : chunks) std::memset(c.data, 0xEE, c.count * sizeof(int64_t));
}

// In place: the IN chunks are the OUT chunks they may be.
std::vector<Chunk> inputs_of(LentRank& rank, size_t count, bool registered, bool in_place, std::vector<Chunk>& out) {
  std::vector<Chunk> in = rank.chunks(rank.program().nchunks_in, count, registered);
  for (size_t i = 0; in_place && i < in.size(); ++i)
    if (const int shared = rank.program().shared_out(static_cast<int>(i)); shared >= 0) in[i] = out[shared];
  return in;
}

// Ranks in `lenders` (a bit each) have registered memory.
void run(const Case& c, int ranks, uint32_t lenders, bool in_place, const Kind& kind) {
  const auto body = [&](LentRank& rank, int r) {
    const bool registered = lenders >> r & 1;
    for (size_t count : {size_t{0}, size_t{5}, size_t{64}, kPieceElements * 17 + 3, size_t{1}, kPieceElements * 40}) {
      std::vector<Chunk> out = rank.chunks(rank.program().nchunks_out, count, registered);
      std::vector<Chunk> in = inputs_of(rank, count, registered, in_place, out);
      rank.set_inputs(in);
      auto run = rank.start(in, out);
      to_end(*run);
      if (!in_place) scribble(in);
      for (size_t k = 0; k < out.size(); ++k)
        for (size_t i = 0; i < count; ++i)
          CHECK_EQ(LentRank::values(out[k])[i], wanted(c, rank.program(), r, static_cast<int>(k), i));
      scribble(out);
      // A wire takes any memory, and its readers have a copy of their own.
      const bool on_wire = &kind == &kTcp,
                 lends = ranks > 1 && count >= kPieceElements && (c.lends_in_place || !in_place);
      if (&kind != &kMixed) CHECK_EQ(run->lent(), (registered || on_wire) && lends);
      const bool others = lenders & ~(1u << r);
      if (count < kPieceElements || !others || on_wire) CHECK(!run->borrowed());
    }
  };
  on_ranks(ranks, c.make, body, kind);
}

void every_mix() {
  for (const Case& c : kCases) {
    section(c.name);
    for (int ranks : {1, 2, 3, 4})
      for (uint32_t lenders : {0u, 1u, 2u, 5u, 15u})
        for (bool in_place : {false, true}) run(c, ranks, lenders, in_place, kShm);
    for (const Kind* wire : {&kTcp, &kMixed})
      for (uint32_t lenders : {0u, 5u, 15u})
        for (bool in_place : {false, true}) run(c, 4, lenders, in_place, *wire);
  }
}

// A rank whose slots others still read is not at its end, says for whom it waits, and goes on by itself.
void ends_when_read() {
  auto world = kShm.make({2});
  LentRank writer(*world, 2, 0, all_gather), reader(*world, 2, 1, all_gather);
  const size_t count = kPieceElements;  // one loop: each sends before it waits
  std::vector<Chunk> in = writer.chunks(1, count, true), out = writer.chunks(2, count, false);
  std::vector<Chunk> other_in = reader.chunks(1, count, false), other_out = reader.chunks(2, count, false);
  writer.set_inputs(in);
  auto a = writer.start(in, out), b = reader.start(other_in, other_out);
  while (b->advance() != Progress::blocked) continue;
  CHECK(!b->borrowed());
  while (a->advance() != Progress::blocked) continue;  // all of its steps are done: the other had sent everything
  CHECK(a->lent());
  CHECK_EQ(a->waits_for(), 1);
  CHECK(a->waits_to_send());
  to_end(*b);
  CHECK(b->borrowed());
  CHECK(a->advance() == Progress::done);
}

// A root that is asked to stays until its readers have what it sent, copied or not, small or not.
void drains() {
  for (bool drain : {false, true})
    for (size_t count : {size_t{1}, kPieceElements * 2}) {
      const Make make = [drain](int n, int r) {
        if (r > 0) return broadcast(n, r, 0);
        Table t(Collective::broadcast, n, r, 1, 1, 0);
        t.send(in(0), t.fan_out()).copy(in(0), out(0));
        return (drain ? t.drain() : t).pack();
      };
      auto world = kShm.make({2});
      LentRank root(*world, 2, 0, make), other(*world, 2, 1, make);
      std::vector<Chunk> data = root.chunks(1, count, false), there = other.chunks(1, count, false);
      root.set_inputs(data);
      auto a = root.start(data, data), b = other.start({}, there);
      if (drain) {
        while (a->advance() != Progress::blocked) continue;
        CHECK_EQ(a->waits_for(), 1);
      } else {
        CHECK(a->advance() == Progress::done);
      }
      to_end(*b);
      CHECK(a->advance() == Progress::done);
      CHECK(std::memcmp(data[0].data, there[0].data, count * sizeof(int64_t)) == 0);
    }
}

}  // namespace

int main() {
  start("lending_test", 240);
  every_mix();
  section("ends when it was read");
  ends_when_read();
  section("a root that drains");
  drains();
  return 0;
}
