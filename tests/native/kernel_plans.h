// Plans for the kernel tests: those of programs.h and some that bring the opcodes which they leave out.
#pragma once

#include "kernel_job.h"
#include "programs.h"

namespace ringcomm::test {

using Make = std::function<Packed(int ranks, int rank)>;

inline Plan plan(const Make& make, int ranks) {
  Plan all;
  for (int r = 0; r < ranks; ++r) all.push_back(make(ranks, r));
  return all;
}

// Down a chain to rank 0 and back up: forwards with and without destination, and slots of rank 0's fan-out that are taken unread.
inline Packed chain_and_back(int ranks, int rank) {
  Table t(Collective::all_reduce, ranks, rank, 1, 1);
  if (ranks == 1) return t.copy(in(0), out(0)).pack();
  const bool first = rank == 0, last = rank == ranks - 1;
  if (last)
    t.send(in(0), t.pair_to(rank - 1), 0, Lend::never);
  else if (!first)
    t.step(Opcode::reduce_send, in(0), {in(0), t.pair_from(rank + 1)}, {t.pair_to(rank - 1)}, {});
  if (first) {
    t.step(Opcode::reduce_send, in(0), {in(0), t.pair_from(1)}, {t.fan_out()}, {out(0), 0, true});
    t.send(out(0), t.pair_to(1), 0, Lend::never);
    return t.drain().pack();
  }
  t.step(Opcode::skip, out(0), {t.fan_out_from(0)}, {}, {});
  if (last) return t.receive(t.pair_from(rank - 1), out(0)).pack();
  return t.step(Opcode::forward, out(0), {t.pair_from(rank - 1)}, {t.pair_to(rank + 1)}, {out(0), 0}).pack();
}

inline Packed reduce_scatter(int ranks, int rank) {
  Table t(Collective::reduce_scatter, ranks, rank, ranks, 1);
  for (int k = 1; k < ranks; ++k) t.send(in(t.at(k)), t.pair_to(t.at(k)), 0, Lend::never);
  std::vector<int32_t> sources;
  for (int r = 0; r < ranks; ++r) sources.push_back(r == rank ? in(rank) : t.pair_from(r));
  if (ranks == 1) return t.copy(in(0), out(0)).pack();
  return t.step(Opcode::reduce, out(0), sources, {}, {out(0), 1, true}).pack();
}

// Rank 1 passes on what it does not keep: a forward without destination.
inline Packed relay(int ranks, int rank) {
  Table t(Collective::broadcast, ranks, rank, rank == 0 ? 1 : 0, 1, 0);
  if (rank == 0) return t.copy(in(0), out(0)).send(in(0), t.pair_to(1)).send(in(0), t.pair_to(1)).pack();
  if (rank == 1) {
    t.receive(t.pair_from(0), out(0));
    return t.step(Opcode::forward, out(0), {t.pair_from(0)}, {t.pair_to(2)}, {}).pack();
  }
  return t.receive(t.pair_from(1), out(0)).pack();
}

struct Schedule {
  const char* name;
  Make make;
  int least = 1, most = 8;
};

inline const std::vector<Schedule> kSchedules = {
    {"one_shot", one_shot},
    {"two_shot", two_shot},
    {"ring", [](int n, int r) { return ring(n, r, 0); }},
    {"ring, lag", [](int n, int r) { return ring(n, r, 1); }},
    {"chain and back", chain_and_back},
    {"reduce_scatter", reduce_scatter},
    {"all_gather", all_gather},
    {"all_to_all", all_to_all},
    {"broadcast", [](int n, int r) { return broadcast(n, r, n - 1); }},
    {"relay", relay, 3, 3},
};

}  // namespace ringcomm::test
