#include "engine/board.h"

#include <cstring>

namespace ringcomm {

// Layout: the record in the first 1 KiB, then a cache line per rank.
struct alignas(64) Board::Record {
  std::atomic<uint32_t> state;  // 0 nothing, 1 being written, 2 complete
  Error error;
};

struct alignas(64) Board::BoardLine {
  std::atomic<uint64_t> sequence;  // stored last, so a reader that sees it sees the call
  std::atomic<uint64_t> bytes;
  std::atomic<int64_t> since;
  std::atomic<uint32_t> what;  // collective | dtype << 8 | op << 16
  std::atomic<int32_t> root;
  std::atomic<uint32_t> schedule;
  std::atomic<uint32_t> state;
};

namespace {
constexpr size_t kRecordBytes = 1024;
constexpr auto kRelaxed = std::memory_order_relaxed;
}  // namespace

size_t Board::bytes(int ranks) {
  static_assert(sizeof(Record) <= kRecordBytes && sizeof(BoardLine) == 64);
  return kRecordBytes + sizeof(BoardLine) * static_cast<size_t>(ranks);
}

Board::Record& Board::record() const { return *reinterpret_cast<Record*>(memory_); }
Board::BoardLine& Board::line(int rank) const { return reinterpret_cast<BoardLine*>(memory_ + kRecordBytes)[rank]; }

uint32_t Fingerprint::hash() const {
  // splitmix64's finaliser over the fields; the parameters are its published ones.
  uint64_t h = sequence;
  const uint64_t words[] = {bytes, uint64_t(collective) | uint64_t(dtype) << 8 | uint64_t(op) << 16 | uint64_t(uint32_t(root)) << 24, schedule};
  for (uint64_t w : words) {
    h += w + 0x9E3779B97F4A7C15ull;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
    h ^= h >> 31;
  }
  return static_cast<uint32_t>(h);
}

void Board::set_state(RankState state) { line(rank_).state.store(static_cast<uint32_t>(state)); }
RankState Board::state(int rank) const { return static_cast<RankState>(line(rank).state.load()); }

void Board::announce(const Fingerprint& f) {
  BoardLine& l = line(rank_);
  l.bytes.store(f.bytes, kRelaxed);
  l.since.store(now_ns(), kRelaxed);
  l.what.store(uint32_t(f.collective) | uint32_t(f.dtype) << 8 | uint32_t(f.op) << 16, kRelaxed);
  l.root.store(f.root, kRelaxed);
  l.schedule.store(f.schedule, kRelaxed);
  l.sequence.store(f.sequence, std::memory_order_release);
}

Fingerprint Board::read(int rank, int64_t* age_ns) const {
  const BoardLine& l = line(rank);
  Fingerprint f;
  f.sequence = l.sequence.load(std::memory_order_acquire);
  f.bytes = l.bytes.load(kRelaxed);
  const uint32_t what = l.what.load(kRelaxed);
  f.collective = static_cast<Collective>(what & 255);
  f.dtype = static_cast<DType>(what >> 8 & 255);
  f.op = static_cast<ReduceOp>(what >> 16 & 255);
  f.root = l.root.load(kRelaxed);
  f.schedule = l.schedule.load(kRelaxed);
  if (age_ns) *age_ns = now_ns() - l.since.load(kRelaxed);
  return f;
}

bool Board::post(const Error& error) {
  Record& r = record();
  uint32_t nothing = 0;
  if (!r.state.compare_exchange_strong(nothing, 1)) return false;
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
