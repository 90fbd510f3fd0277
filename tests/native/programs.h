// Programs put together by hand for the native tests: the packed tables of docs/program.md. The schedules that users
// run are Python's.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/types.h"

namespace ringcomm::test {

inline int32_t ref(RefKind kind, int index) { return static_cast<int32_t>(kind) << kRefKindShift | index; }
inline int32_t in(int i) { return ref(RefKind::in, i); }
inline int32_t out(int i) { return ref(RefKind::out, i); }

// One rank's table, step by step.
class Table {
 public:
  Table(Collective collective, int ranks, int rank, int chunks_in, int chunks_out, int root = -1)
      : rank_(rank), ranks_(ranks) {
    header_.magic = kProgramMagic;
    header_.version = kProgramVersion;
    header_.collective = static_cast<int32_t>(collective);
    header_.nranks = ranks, header_.rank = rank, header_.root = root;
    header_.nchunks_in = chunks_in, header_.nchunks_out = chunks_out;
    header_.slots = 4;
  }

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  int at(int distance) const {
    return ((rank_ + distance) % ranks_ + ranks_) % ranks_;
  }  // the rank, or its chunk, so far along the ring

  int32_t pair_to(int peer) { return ref(RefKind::sender, connection(senders_, ConnectionKind::pair, peer)); }
  int32_t pair_from(int peer) { return ref(RefKind::receiver, connection(receivers_, ConnectionKind::pair, peer)); }
  int32_t fan_out() { return ref(RefKind::sender, connection(senders_, ConnectionKind::fan_out, -1)); }
  int32_t fan_out_from(int peer) {
    return ref(RefKind::receiver, connection(receivers_, ConnectionKind::fan_out, peer));
  }

  struct More {
    int32_t dst = kNoRef;
    int lag = 0;
    bool finish = false;
    Lend lend = Lend::never;
  };
  Table& step(Opcode opcode, int32_t chunk, std::vector<int32_t> sources, std::vector<int32_t> senders, More more) {
    const int32_t flags = (more.finish ? kFlagFinish : 0) | static_cast<int32_t>(more.lend) << kLendShift;
    steps_.push_back({static_cast<int32_t>(opcode), flags, more.lag, chunk, more.dst,
                      static_cast<int32_t>(refs_.size()), static_cast<int32_t>(sources.size()),
                      static_cast<int32_t>(senders.size())});
    refs_.insert(refs_.end(), sources.begin(), sources.end());
    refs_.insert(refs_.end(), senders.begin(), senders.end());
    header_.max_lag = std::max(header_.max_lag, more.lag);
    return *this;
  }
  Table& copy(int32_t from, int32_t to) { return step(Opcode::copy, to, {from}, {}, {to}); }
  Table& send(int32_t from, int32_t to, int lag = 0, Lend lend = Lend::always) {
    return step(Opcode::send, from, {from}, {to}, {kNoRef, lag, false, lend});
  }
  Table& receive(int32_t from, int32_t to, int lag = 0) { return step(Opcode::receive, to, {from}, {}, {to, lag}); }
  Table& forward(int32_t from, int32_t dst, int32_t to, int lag = 0) {
    return step(Opcode::forward, dst, {from}, {to}, {dst, lag, false, Lend::always});
  }
  Table& reduce(std::vector<int32_t> sources, int32_t dst) {
    return step(Opcode::reduce, dst, std::move(sources), {}, {dst, 0, true});
  }

  Table& drain() {
    header_.flags = kFlagDrain;
    return *this;
  }

  std::vector<int32_t> pack() const {
    ProgramHeader h = header_;
    h.nsteps = static_cast<int32_t>(steps_.size()), h.nrefs = static_cast<int32_t>(refs_.size());
    h.nsenders = static_cast<int32_t>(senders_.size()), h.nreceivers = static_cast<int32_t>(receivers_.size());
    std::vector<int32_t> words;
    const auto add = [&words](const void* from, size_t bytes) {
      const size_t at = words.size();
      words.resize(at + bytes / sizeof(int32_t));
      if (bytes) std::memcpy(words.data() + at, from, bytes);
    };
    add(&h, sizeof h);
    add(steps_.data(), steps_.size() * sizeof(PackedStep));
    add(refs_.data(), refs_.size() * sizeof(int32_t));
    add(senders_.data(), senders_.size() * sizeof(PackedConnection));
    add(receivers_.data(), receivers_.size() * sizeof(PackedConnection));
    return words;
  }

 private:
  static int connection(std::vector<PackedConnection>& table, ConnectionKind kind, int peer) {
    for (size_t i = 0; i < table.size(); ++i)
      if (table[i].kind == static_cast<int32_t>(kind) && table[i].peer == peer) return static_cast<int>(i);
    table.push_back({static_cast<int32_t>(kind), peer, 0});
    return static_cast<int>(table.size()) - 1;
  }

  const int rank_, ranks_;
  ProgramHeader header_ = {};
  std::vector<PackedStep> steps_;
  std::vector<int32_t> refs_;
  std::vector<PackedConnection> senders_, receivers_;
};

using Packed = std::vector<int32_t>;

// Everybody's whole message to everybody, summed in rank order. In place, whoever is early would write what others still have to read.
inline Packed one_shot_lending(int ranks, int rank, Lend lend) {
  Table t(Collective::all_reduce, ranks, rank, 1, 1);
  if (ranks == 1) return t.copy(in(0), out(0)).pack();
  t.send(in(0), t.fan_out(), 0, lend);
  std::vector<int32_t> sources;
  for (int r = 0; r < ranks; ++r) sources.push_back(r == rank ? in(0) : t.fan_out_from(r));
  return t.reduce(sources, out(0)).pack();
}

inline Packed one_shot(int ranks, int rank) { return one_shot_lending(ranks, rank, Lend::apart); }

// Chunk j to rank j, which reduces it and gives it to all.
inline Packed two_shot(int ranks, int rank) {
  Table t(Collective::all_reduce, ranks, rank, ranks, ranks);
  if (ranks == 1) return t.copy(in(0), out(0)).pack();
  for (int k = 1; k < ranks; ++k) t.send(in(t.at(k)), t.pair_to(t.at(k)));
  std::vector<int32_t> sources;
  for (int r = 0; r < ranks; ++r) sources.push_back(r == rank ? in(rank) : t.pair_from(r));
  t.step(Opcode::reduce_send, in(rank), sources, {t.fan_out()}, {out(rank), 1, true, Lend::always});
  for (int k = 1; k < ranks; ++k) t.receive(t.fan_out_from(t.at(k)), out(t.at(k)), 2);
  return t.pack();
}

// Reduce-scatter, then all-gather `lag` loops behind; chunk c comes home to rank c.
inline Packed ring(int ranks, int rank, int lag) {
  Table t(Collective::all_reduce, ranks, rank, ranks, ranks);
  if (ranks == 1) return t.copy(in(0), out(0)).pack();
  const int32_t next = t.pair_to(t.at(1)), previous = t.pair_from(t.at(-1));
  t.send(in(t.at(-1)), next);
  for (int k = 2; k < ranks; ++k) t.step(Opcode::reduce_send, in(t.at(-k)), {previous, in(t.at(-k))}, {next}, {});
  t.reduce({previous, in(rank)}, out(rank));
  t.send(out(rank), next, lag);
  for (int k = 1; k < ranks - 1; ++k) t.forward(previous, out(t.at(-k)), next, lag);
  return t.receive(previous, out(t.at(1)), lag).pack();
}

inline Packed all_gather(int ranks, int rank) {
  Table t(Collective::all_gather, ranks, rank, 1, ranks);
  t.copy(in(0), out(rank));
  if (ranks == 1) return t.pack();
  t.send(in(0), t.fan_out());
  for (int k = 1; k < ranks; ++k) t.receive(t.fan_out_from(t.at(k)), out(t.at(k)));
  return t.pack();
}

inline Packed all_to_all(int ranks, int rank) {
  Table t(Collective::all_to_all, ranks, rank, ranks, ranks);
  t.copy(in(rank), out(rank));
  for (int k = 1; k < ranks; ++k) {
    t.send(in(t.at(k)), t.pair_to(t.at(k)));
    t.receive(t.pair_from(t.at(-k)), out(t.at(-k)));
  }
  return t.pack();
}

inline Packed broadcast(int ranks, int rank, int root) {
  Table t(Collective::broadcast, ranks, rank, rank == root ? 1 : 0, 1, root);
  if (rank != root) return t.receive(t.fan_out_from(root), out(0)).pack();
  t.copy(in(0), out(0));
  if (ranks > 1) t.send(in(0), t.fan_out());
  return t.pack();
}

}  // namespace ringcomm::test
