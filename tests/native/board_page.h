// The page that ranks, as threads, have their Boards over, and what is where on it.
#pragma once

#include <cstring>
#include <vector>

#include "check.h"
#include "engine/board.h"

namespace ringcomm::test {

inline constexpr int kCalls = Board::kCalls;

// The layout in docs/control_plane.md, in bytes.
inline constexpr size_t kStates = 1024, kLineBytes = 64, kPageBytes = 4096;
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

}  // namespace ringcomm::test
