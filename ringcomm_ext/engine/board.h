// The group's board on a node: a page of shared memory (11 ranks) or a few that every rank of the node maps. Each rank has lines that say which calls
// it made last; one record holds the first failure anybody saw; the roll call of monitored barriers has its words at the end. Read only when something
// is wrong, so it costs its writer a few stores a call.
//
// Ranks of other nodes write on their own node's board. What they said last, as far as this process was told (control_group.h), stands in a mirror of
// its own, behind the same functions.
//
// Several calls, not one: a rank whose part of a call had ended (it brought 0 elements) or that issues many at once is already at a later one when the
// others find that they disagree.
//
// Threads: announce() under the group's issue lock; mirror_*() by the poller; everything else from anywhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/status.h"
#include "engine/roll_call.h"

namespace ringcomm {

enum class RankState : uint32_t { absent = 0, present = 1, left = 2 };

// What must be equal on all ranks of a call.
struct Fingerprint {
  Collective collective = Collective::barrier;
  DType dtype = DType::other;
  ReduceOp op = ReduceOp::none;
  int root = -1;
  uint64_t sequence = 0;
  uint64_t bytes = 0;  // of the whole message; 0 where ranks may differ:
  bool uniform = true;
  uint32_t schedule = 0;  // hash of schedule, slot and channels

  bool is_message() const { return collective == Collective::send || collective == Collective::recv; }
  uint32_t hash() const;
  // Collective, dtype, op and uniform in one word, as boards and control frames carry them.
  uint32_t what() const;
  void set_what(uint32_t word);
  bool operator==(const Fingerprint& o) const {
    return collective == o.collective && dtype == o.dtype && op == o.op && root == o.root && sequence == o.sequence &&
           bytes == o.bytes && uniform == o.uniform && schedule == o.schedule;
  }
};

class Board {
 public:
  Board() = default;
  // `remote`: by rank, whether it is on another node; empty where none is.
  Board(char* memory, int ranks, int rank, std::vector<bool> remote = {});
  static size_t bytes(int ranks);
  static constexpr int kCalls = 4;  // remembered per rank

  void set_state(RankState state);
  RankState state(int rank) const;
  void announce(const Fingerprint& f);
  // What `rank` last announced (sequence 0: nothing); `age_ns`: how long ago.
  Fingerprint read(int rank, int64_t* age_ns) const;
  // Call number `sequence` as `rank` announced it. False: it has not come to it, or made kCalls since.
  bool find(int rank, uint64_t sequence, Fingerprint& f) const;

  // What a remote rank said. Older news than what is known changes nothing.
  void mirror_state(int rank, RankState state);
  void mirror_call(int rank, const Fingerprint& f, int64_t age_ns);
  // The calls of this rank that are still on its lines, with how long ago they were made, in no order.
  int calls(Fingerprint (&f)[kCalls], int64_t (&age_ns)[kCalls]) const;

  // First cause wins: true if this was it. The record is on the board before true is returned.
  bool post(const Error& error);
  bool failed() const;
  bool read_error(Error& error) const;  // false while nothing (complete) is there

  RollCall roll_call() const;

 private:
  struct Record;
  struct BoardLine;
  static size_t roll_call_offset(int ranks);
  Record& record() const;
  std::atomic<uint32_t>& state_word(int rank) const;
  BoardLine& line(int rank, uint64_t sequence) const;
  char* home(int rank) const { return remote_.empty() || !remote_[rank] ? memory_ : mirror_.get(); }
  static void store(BoardLine& line, const Fingerprint& f, int64_t since);
  static bool load(const BoardLine& line, Fingerprint& f, int64_t* since);

  char* memory_ = nullptr;
  int ranks_ = 0, rank_ = 0;
  std::vector<bool> remote_;
  std::shared_ptr<char> mirror_;  // laid out as the board; of its parts only remote ranks' words and lines are used
};

}  // namespace ringcomm
