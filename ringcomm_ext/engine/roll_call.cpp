#include "engine/roll_call.h"

namespace ringcomm {
namespace {

// The verdict word: the newest barrier that has a verdict, and the newest that was passed. That is all of them: a rank that still waits for the
// verdict of number N has not come to N + 1, so nothing after N can have been passed, and N itself was passed if and only if it is the newest that was.
uint64_t packed(uint32_t settled, uint32_t passed) { return uint64_t{settled} << 32 | passed; }
uint32_t settled_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
uint32_t passed_of(uint64_t word) { return static_cast<uint32_t>(word); }

}  // namespace

size_t RollCall::bytes(int ranks) { return sizeof(uint64_t) + sizeof(Line) * static_cast<size_t>(ranks); }

uint32_t RollCall::arrive(bool* late) {
  std::atomic<uint32_t>& came = line(rank_).came;
  const uint32_t settled = settled_of(word().load());
  const uint32_t next = came.load() + 1;
  *late = settled >= next;
  const uint32_t number = *late ? settled : next;
  came.store(number);
  return number;
}

RollCall::Verdict RollCall::verdict(uint32_t number) const {
  const uint64_t now = word().load();
  if (settled_of(now) < number) return Verdict::none;
  return passed_of(now) >= number ? Verdict::passed : Verdict::given_up;
}

std::vector<int> RollCall::absent(uint32_t number) const {
  std::vector<int> ranks;
  for (int r = 0; r < ranks_; ++r)
    if (line(r).came.load() < number) ranks.push_back(r);
  return ranks;
}

RollCall::Verdict RollCall::settle(uint32_t number, bool passed) {
  uint64_t seen = word().load();
  while (settled_of(seen) < number)
    if (word().compare_exchange_weak(seen, packed(number, passed ? number : passed_of(seen)))) break;
  return verdict(number);
}

RollCall::Verdict RollCall::pass(uint32_t number) { return settle(number, true); }

// The marks come first: whoever sees the verdict must find them. They mean nothing if the verdict turns out to be another. The last rank may have come
// at the last moment: then there is nobody to give up for.
RollCall::Verdict RollCall::give_up(uint32_t number) {
  const std::vector<int> gone = absent(number);
  if (gone.empty()) return pass(number);
  for (int r : gone) line(r).missed.store(number);
  return settle(number, false);
}

namespace {

bool raise(std::atomic<uint32_t>& word, uint32_t to) {
  uint32_t seen = word.load();
  while (seen < to)
    if (word.compare_exchange_weak(seen, to)) return true;
  return false;
}

}  // namespace

bool RollCall::note_came(int rank, uint32_t number) { return raise(line(rank).came, number); }

uint64_t RollCall::words(std::vector<uint32_t>& pairs) const {
  const uint64_t verdict = word().load();  // before the marks, as whoever reads it here
  for (int r = 0; r < ranks_; ++r) pairs.insert(pairs.end(), {line(r).came.load(), line(r).missed.load()});
  return verdict;
}

void RollCall::adopt(uint64_t verdict, const std::vector<uint32_t>& pairs) {
  for (int r = 0; r < ranks_; ++r) {
    if (r != rank_) raise(line(r).came, pairs[2 * r]);
    raise(line(r).missed, pairs[2 * r + 1]);
  }
  uint64_t seen = word().load();
  while (settled_of(seen) < settled_of(verdict))
    if (word().compare_exchange_weak(seen, verdict)) break;
}

std::vector<int> RollCall::missed(uint32_t number) const {
  std::vector<int> ranks;
  for (int r = 0; r < ranks_; ++r)
    if (line(r).missed.load() >= number || line(r).came.load() < number) ranks.push_back(r);
  return ranks;
}

}  // namespace ringcomm
