#include "engine/board.h"

#include <sched.h>

#include <cstring>
#include <new>
#include <utility>

namespace ringcomm {

// Layout: the record in the first 1 KiB; a word of state per rank, 16 to a cache line because all are looked at together and change twice in a
// life; kCalls cache lines per rank; the roll call.
struct alignas(64) Board::Record {
  std::atomic<uint32_t> state;  // 0 nothing, 1 being written, 2 complete
  Error error;
};

struct alignas(64) Board::BoardLine {
  std::atomic<uint64_t> sequence;  // 0 while the rest is being written
  std::atomic<uint64_t> bytes;
  std::atomic<int64_t> since;
  std::atomic<uint32_t> what;  // Fingerprint::what()
  std::atomic<int32_t> root;
  std::atomic<uint32_t> schedule;
};

namespace {
constexpr size_t kRecordBytes = 1024;
constexpr size_t kLine = 64;
size_t state_bytes(int ranks) { return (sizeof(uint32_t) * static_cast<size_t>(ranks) + kLine - 1) / kLine * kLine; }
}  // namespace

Board::Board(char* memory, int ranks, int rank, std::vector<bool> remote)
    : memory_(memory), ranks_(ranks), rank_(rank), remote_(std::move(remote)) {
  if (remote_.empty()) return;
  const std::align_val_t line{kLine};
  mirror_.reset(static_cast<char*>(operator new(roll_call_offset(ranks), line)),
                [line](char* m) { operator delete(m, line); });
  std::memset(mirror_.get(), 0, roll_call_offset(ranks));
}

size_t Board::roll_call_offset(int ranks) {
  static_assert(sizeof(Record) <= kRecordBytes && sizeof(BoardLine) == kLine);
  return kRecordBytes + state_bytes(ranks) + sizeof(BoardLine) * kCalls * static_cast<size_t>(ranks);
}
size_t Board::bytes(int ranks) { return roll_call_offset(ranks) + RollCall::bytes(ranks); }
RollCall Board::roll_call() const { return {memory_ + roll_call_offset(ranks_), ranks_, rank_}; }

Board::Record& Board::record() const { return *reinterpret_cast<Record*>(memory_); }
std::atomic<uint32_t>& Board::state_word(int rank) const {
  return reinterpret_cast<std::atomic<uint32_t>*>(home(rank) + kRecordBytes)[rank];
}
Board::BoardLine& Board::line(int rank, uint64_t sequence) const {
  return reinterpret_cast<BoardLine*>(home(rank) + kRecordBytes +
                                      state_bytes(ranks_))[static_cast<uint64_t>(rank) * kCalls + sequence % kCalls];
}

uint32_t Fingerprint::hash() const {
  // splitmix64's finaliser over the fields; the parameters are its published ones.
  uint64_t h = sequence;
  const uint64_t words[] = {bytes,
                            uint64_t(collective) | uint64_t(dtype) << 8 | uint64_t(op) << 16 |
                                uint64_t(uint32_t(root)) << 24 | uint64_t(uniform) << 63,
                            schedule};
  for (uint64_t w : words) {
    h += w + 0x9E3779B97F4A7C15ull;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
    h ^= h >> 31;
  }
  return static_cast<uint32_t>(h);
}

uint32_t Fingerprint::what() const {
  return uint32_t(collective) | uint32_t(dtype) << 8 | uint32_t(op) << 16 | uint32_t(uniform) << 24;
}

void Fingerprint::set_what(uint32_t word) {
  collective = static_cast<Collective>(word & 255);
  dtype = static_cast<DType>(word >> 8 & 255);
  op = static_cast<ReduceOp>(word >> 16 & 255);
  uniform = word >> 24 & 1;
}

void Board::set_state(RankState state) { state_word(rank_).store(static_cast<uint32_t>(state)); }
RankState Board::state(int rank) const { return static_cast<RankState>(state_word(rank).load()); }

// Each field is a release after the 0: a reader that sees a new field sees the 0 or the new number too, and knows the line changed under it.
void Board::store(BoardLine& l, const Fingerprint& f, int64_t since) {
  constexpr auto release = std::memory_order_release;
  l.sequence.store(0, std::memory_order_relaxed);
  l.bytes.store(f.bytes, release);
  l.since.store(since, release);
  l.what.store(f.what(), release);
  l.root.store(f.root, release);
  l.schedule.store(f.schedule, release);
  l.sequence.store(f.sequence, release);
}

void Board::announce(const Fingerprint& f) { store(line(rank_, f.sequence), f, now_ns()); }

void Board::mirror_call(int rank, const Fingerprint& f, int64_t age_ns) {
  BoardLine& l = line(rank, f.sequence);
  if (f.sequence > l.sequence.load(std::memory_order_relaxed)) store(l, f, now_ns() - age_ns);
}

void Board::mirror_state(int rank, RankState state) {
  std::atomic<uint32_t>& word = state_word(rank);
  if (static_cast<uint32_t>(state) > word.load()) word.store(static_cast<uint32_t>(state));
}

int Board::calls(Fingerprint (&f)[kCalls], int64_t (&age_ns)[kCalls]) const {
  int n = 0;
  const int64_t now = now_ns();
  for (int i = 0; i < kCalls; ++i) {
    int64_t since;
    if (load(line(rank_, i), f[n], &since)) age_ns[n++] = now - since;
  }
  return n;
}

// False: nothing there, or overwritten while it was read.
bool Board::load(const BoardLine& l, Fingerprint& f, int64_t* since) {
  constexpr auto acquire = std::memory_order_acquire;
  f.sequence = l.sequence.load(acquire);
  f.bytes = l.bytes.load(acquire);
  *since = l.since.load(acquire);
  f.set_what(l.what.load(acquire));
  f.root = l.root.load(acquire);
  f.schedule = l.schedule.load(acquire);
  return f.sequence != 0 && l.sequence.load(acquire) == f.sequence;
}

Fingerprint Board::read(int rank, int64_t* age_ns) const {
  Fingerprint last, f;
  int64_t since = now_ns(), s;
  for (int i = 0; i < kCalls; ++i)
    if (load(line(rank, i), f, &s) && f.sequence > last.sequence) last = f, since = s;
  if (age_ns) *age_ns = now_ns() - since;
  return last;
}

bool Board::find(int rank, uint64_t sequence, Fingerprint& f) const {
  int64_t since;
  return load(line(rank, sequence), f, &since) && f.sequence == sequence;
}

bool Board::post(const Error& error) {
  Record& r = record();
  uint32_t nothing = 0;
  if (!r.state.compare_exchange_strong(nothing, 1)) {
    // The winner is about to be done, unless it was killed in between; then nobody's word stands and each rank keeps its own.
    for (int i = 0; i < 1000 && r.state.load() == 1; ++i) sched_yield();
    return false;
  }
  r.error = error;
  r.state.store(2);
  return true;
}

bool Board::failed() const { return record().state.load(std::memory_order_acquire) == 2; }

bool Board::read_error(Error& error) const {
  if (!failed()) return false;
  error = record().error;
  return true;
}

}  // namespace ringcomm
