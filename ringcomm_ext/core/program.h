// One rank's program, decoded from the packed table of docs/program.md. Immutable after load; shared by all requests that run it.
#pragma once

#include <string>
#include <vector>

#include "core/types.h"

namespace ringcomm {

struct Ref {
  RefKind kind = RefKind::in;
  int index = -1;
  bool none() const { return index < 0; }
};

struct Step {
  Opcode opcode;
  bool finish;
  Lend lend;
  int lag;
  Ref chunk;  // its length decides in which loops the step acts, and on how much
  Ref dst;    // none() where there is no local destination
  int first_ref, nsources, nsenders;
};

struct ConnectionRef {
  ConnectionKind kind;
  int peer;
};

struct Program {
  Collective collective;
  int nranks, rank, root;
  int nchunks_in, nchunks_out;
  int max_lag, slots;
  bool drain;  // its end waits until the readers have taken everything
  std::vector<Step> steps;
  std::vector<Ref> refs;
  std::vector<ConnectionRef> senders, receivers;
  int most_sources = 0, most_senders = 0;

  const Ref* sources(const Step& s) const { return refs.data() + s.first_ref; }
  const Ref* step_senders(const Step& s) const { return refs.data() + s.first_ref + s.nsources; }
  // The memory that a step which may lend shows its readers.
  const Ref& lent(const Step& s) const { return s.dst.none() ? *sources(s) : s.dst; }
  // The OUT chunk that is the memory of IN chunk `in` in an in-place call, or -1.
  int shared_out(int in) const;

  // Fills `out` from the table; on a table that breaks docs/program.md returns a sentence that names the word, else "".
  static std::string load(const int32_t* words, size_t count, Program& out);
};

}  // namespace ringcomm
