// Program::load takes good tables and refuses every kind of wrong word, naming it.
#include "core/program.h"

#include "check.h"
#include "programs.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

std::string load(const Packed& table) {
  Program program;
  return Program::load(table.data(), table.size(), program);
}

void good_tables() {
  for (int n = 1; n <= 5; ++n)
    for (int rank = 0; rank < n; ++rank) {
      for (int lag : {0, 1}) CHECK_EQ(load(ring(n, rank, lag)), "");
      for (Lend lend : {Lend::never, Lend::apart, Lend::always}) CHECK_EQ(load(one_shot_lending(n, rank, lend)), "");
      CHECK_EQ(load(all_gather(n, rank)), "");
      CHECK_EQ(load(all_to_all(n, rank)), "");
      for (int root = 0; root < n; ++root) CHECK_EQ(load(broadcast(n, rank, root)), "");
    }
}

void what_is_loaded() {
  const Packed table = ring(3, 1, 1);
  Program p;
  CHECK_EQ(Program::load(table.data(), table.size(), p), "");
  CHECK(p.collective == Collective::all_reduce);
  CHECK_EQ(p.nranks, 3);
  CHECK_EQ(p.rank, 1);
  CHECK_EQ(p.root, -1);
  CHECK_EQ(p.nchunks_in, 3);
  CHECK_EQ(p.max_lag, 1);
  CHECK_EQ(p.slots, 4);
  CHECK(!p.drain);
  CHECK_EQ(p.steps.size(), size_t{6});
  CHECK_EQ(p.senders.size(), size_t{1});
  CHECK_EQ(p.senders[0].peer, 2);
  CHECK_EQ(p.receivers[0].peer, 0);
  CHECK_EQ(p.most_sources, 2);
  CHECK_EQ(p.most_senders, 1);
  const Step& finish = p.steps[2];
  CHECK(finish.opcode == Opcode::reduce);
  CHECK(finish.finish);
  CHECK(p.sources(finish)[0].kind == RefKind::receiver);
  CHECK(p.sources(finish)[1].kind == RefKind::in);
  CHECK_EQ(p.sources(finish)[1].index, 1);
  CHECK_EQ(p.steps[3].lag, 1);
  CHECK(p.steps[0].lend == Lend::always && p.lent(p.steps[0]).kind == RefKind::in);
  CHECK(p.steps[1].lend == Lend::never);
  CHECK(p.steps[4].lend == Lend::always && p.lent(p.steps[4]).kind == RefKind::out);
  // A second load into the same object starts afresh.
  const Packed other = one_shot(2, 0);
  CHECK_EQ(Program::load(other.data(), other.size(), p), "");
  CHECK_EQ(p.steps.size(), size_t{2});
}

// One word of a good table is changed; `says` must be in the answer.
struct Wrong {
  const char* what;
  size_t word;
  int32_t value;
  const char* says;
};

void refuse(const Packed& good, const std::vector<Wrong>& cases) {
  CHECK_EQ(load(good), "");
  for (const Wrong& w : cases) {
    Packed table = good;
    CHECK(w.word < table.size());
    table[w.word] = w.value;
    const std::string answer = load(table);
    if (answer.empty()) fail(w.what, static_cast<int>(w.word), "is taken with the value " + std::to_string(w.value));
    CHECK_CONTAINS(answer, w.says);
  }
}

// Words of the header, by place.
enum Header {
  kMagic,
  kVersion,
  kCollective,
  kNranks,
  kRank,
  kRoot,
  kChunksIn,
  kChunksOut,
  kSteps,
  kRefs,
  kSenders,
  kReceivers,
  kMaxLag,
  kSlots,
  kHeaderFlags,
  kReserved
};

void wrong_headers() {
  refuse(ring(3, 1, 1), {
                            {"magic", kMagic, 0, "magic"},
                            {"version", kVersion, 1, "version"},
                            {"collective", kCollective, 8, "collective"},
                            {"collective", kCollective, -1, "collective"},
                            {"nranks", kNranks, 0, "nranks"},
                            {"rank", kRank, 3, "rank"},
                            {"rank", kRank, -1, "rank"},
                            {"root", kRoot, 3, "root"},
                            {"root", kRoot, -2, "root"},
                            {"nsteps", kSteps, -1, "count"},
                            {"nsteps", kSteps, 5, "words"},
                            {"nrefs", kRefs, 1 << 25, "count"},
                            {"nrefs", kRefs, 9, "words"},
                            {"nsenders", kSenders, 2, "words"},
                            {"nreceivers", kReceivers, 0, "words"},
                            {"chunks in", kChunksIn, 1, "ref"},
                            {"chunks out", kChunksOut, 0, "ref"},
                            {"max lag", kMaxLag, 0, "lag"},
                            {"max lag", kMaxLag, 2, "lag"},
                            {"slots", kSlots, 0, "slots"},
                            {"flags", kHeaderFlags, 2, "flags"},
                            {"reserved", kReserved, 1, "reserved"},
                        });
}

// Steps of ring(3, 1, 1): send, reduce_send, reduce, send, forward, receive.
size_t step_word(int step, int word) { return 16 + 8 * static_cast<size_t>(step) + static_cast<size_t>(word); }
enum StepWord { kOpcode, kFlags, kLag, kChunk, kDst, kFirstRef, kNsources, kNsenders };

void wrong_steps() {
  refuse(ring(3, 1, 1),
         {
             {"opcode", step_word(0, kOpcode), 7, "opcode of step 0"},
             {"opcode", step_word(5, kOpcode), -1, "opcode of step 5"},
             {"flags", step_word(0, kFlags), 6, "flags of step 0"},
             {"a reduction without a reader lends", step_word(2, kFlags), 2, "flags of step 2"},
             {"a result that is in a slot only is lent", step_word(1, kFlags), 2, "flags of step 1"},
             {"finish on a send", step_word(0, kFlags), 1, "flags of step 0"},
             {"lag", step_word(3, kLag), 2, "lag of step 3"},
             {"lag", step_word(3, kLag), -1, "lag of step 3"},
             {"chunk", step_word(1, kChunk), in(3), "governing chunk of step 1"},
             {"chunk", step_word(1, kChunk), kNoRef, "governing chunk of step 1"},
             {"chunk", step_word(1, kChunk), ref(RefKind::receiver, 0), "governing chunk of step 1"},
             {"dst of a send", step_word(0, kDst), out(0), "destination of step 0"},
             {"no dst of a receive", step_word(5, kDst), kNoRef, "destination of step 5"},
             {"dst is an input", step_word(5, kDst), in(0), "destination of step 5"},
             {"dst out of range", step_word(5, kDst), out(3), "destination of step 5"},
             {"first ref", step_word(1, kFirstRef), 1, "first ref of step 1"},
             {"first ref", step_word(1, kFirstRef), -1, "first ref of step 1"},
             {"sources", step_word(0, kNsources), -1, "of step 0"},
             {"sources", step_word(5, kNsources), 100, "of step 5"},
             {"no sender", step_word(5, kOpcode), static_cast<int32_t>(Opcode::forward), "senders of step 5"},
             {"one source", step_word(5, kOpcode), static_cast<int32_t>(Opcode::reduce), "sources of step 5"},
             {"a copy from a receiver", step_word(5, kOpcode), static_cast<int32_t>(Opcode::copy), "source of step 5"},
         });
}

void wrong_refs() {
  const Packed good = ring(3, 1, 1);
  const size_t refs = 16 + 8 * 6;
  refuse(good, {
                   {"ref", refs, in(3), "ref 0"},
                   {"ref", refs, kNoRef, "ref 0"},
                   {"ref", refs, 4 << kRefKindShift, "ref 0"},
                   {"a sender as source", refs, ref(RefKind::sender, 0), "source of step 0"},
                   {"a receiver as sender", refs + 1, ref(RefKind::receiver, 0), "sender of step 0"},
                   {"a sender that is not there", refs + 1, ref(RefKind::sender, 1), "ref 1"},
                   {"a receiver named twice", refs + 3, ref(RefKind::receiver, 0), "named twice"},
               });
}

void wrong_connections() {
  const Packed good = ring(3, 1, 1);
  const size_t connections = good.size() - 6;
  refuse(good, {
                   {"kind", connections, 2, "kind of connection 0"},
                   {"kind", connections + 3, -1, "kind of connection 1"},
                   {"peer", connections + 1, 3, "peer of connection 0"},
                   {"peer", connections + 1, 1, "peer of connection 0"},  // itself
                   {"peer", connections + 4, -1, "peer of connection 1"},
                   {"reader set", connections + 2, 1, "reader set of connection 0"},
               });
}

// No cut of a good table is taken, none reads past its end (AddressSanitizer watches).
void cut_tables() {
  const Packed good = one_shot(4, 2);
  for (size_t words = 0; words < good.size(); ++words)
    CHECK(!load(Packed(good.begin(), good.begin() + static_cast<ptrdiff_t>(words))).empty());
}

// Whatever the words are: an answer, never a crash.
void noise() {
  Random random(5);
  int refused = 0;
  for (int k = 0; k < 20'000; ++k) {
    Packed table = ring(2 + k % 3, 1, k % 2);
    for (size_t changes = 1 + random.below(3); changes > 0; --changes) {
      const int32_t values[] = {-1,
                                0,
                                1,
                                2,
                                INT32_MAX,
                                INT32_MIN,
                                static_cast<int32_t>(random.next()),
                                static_cast<int32_t>(random.below(64))};
      table[random.below(table.size())] = values[random.below(8)];
    }
    refused += !load(table).empty();
  }
  CHECK(refused > 10'000);
}

}  // namespace

int main() {
  start("program_test", 60);
  section("good tables");
  good_tables();
  what_is_loaded();
  section("wrong words");
  wrong_headers();
  wrong_steps();
  wrong_refs();
  wrong_connections();
  section("cut tables and noise");
  cut_tables();
  noise();
  return 0;
}
