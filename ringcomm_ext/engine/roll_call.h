// Who has come to the monitored barriers of a group: a word of shared memory for the verdict and two per rank, on the board.
//
// Words, not messages: what a rank says replaces what it said before, so a barrier that fails leaves nothing behind that a later one would have to
// drain, and no call of the group waits for it or is told of it. Barriers are numbered from 1. Each ends with one verdict, which is the same for
// every rank: the first to see that all have come, or to run out of time, sets it. A rank that comes to a barrier that was given up is told so at
// once, and goes on from the newest verdict, so one error is enough for the ranks to be in step again.
//
// Where the ranks are on several nodes each node has such words, kept alike by frames (control_group.h); the verdict is rank 0's node's to give as long as
// rank 0 lives.
//
// Threads: arrive() by one thread of the rank at a time; everything else from anywhere.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringcomm {

class RollCall {
 public:
  enum class Verdict { none, passed, given_up };

  // `memory`: bytes(ranks) of zeros that all ranks map, aligned to 8.
  RollCall(char* memory, int ranks, int rank) : memory_(memory), ranks_(ranks), rank_(rank) {}
  static size_t bytes(int ranks);

  // Comes to the next barrier, and says so. Its number; `late`: it was given up before.
  uint32_t arrive(bool* late);
  // For a rank that has come to this one and to none since: only the newest verdicts are kept.
  Verdict verdict(uint32_t number) const;
  // The ranks that have not come.
  std::vector<int> absent(uint32_t number) const;
  // All have come. Returns the verdict, which may be another's.
  Verdict pass(uint32_t number);
  Verdict give_up(uint32_t number);
  // After give_up: whom it was given up for. Not empty, and the same on every rank but for one that comes at that very moment.
  std::vector<int> missed(uint32_t number) const;

  // For ranks of other nodes. note_came: true if it is news.
  uint32_t came(int rank) const { return line(rank).came.load(); }
  bool note_came(int rank, uint32_t number);
  // All words but the verdict's, {came, missed} by rank; gives the verdict's.
  uint64_t words(std::vector<uint32_t>& pairs) const;
  // Takes over what another node gave with its verdict, unless this one knows a newer.
  void adopt(uint64_t verdict, const std::vector<uint32_t>& pairs);

 private:
  struct Line {
    std::atomic<uint32_t> came;    // the newest barrier this rank has come to
    std::atomic<uint32_t> missed;  // the newest that was given up because it had not come
  };
  std::atomic<uint64_t>& word() const { return *reinterpret_cast<std::atomic<uint64_t>*>(memory_); }
  Line& line(int rank) const { return reinterpret_cast<Line*>(memory_ + sizeof(uint64_t))[rank]; }
  Verdict settle(uint32_t number, bool passed);

  char* memory_;
  int ranks_, rank_;
};

}  // namespace ringcomm
