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
  std::vector<Step> steps;
  std::vector<Ref> refs;
  std::vector<ConnectionRef> senders, receivers;
  int most_sources = 0, most_senders = 0;

  const Ref* sources(const Step& s) const { return refs.data() + s.first_ref; }
  const Ref* step_senders(const Step& s) const { return refs.data() + s.first_ref + s.nsources; }

  // Fills `out` from the table; on a table that breaks docs/program.md returns a sentence that names the word, else "".
  static std::string load(const int32_t* words, size_t count, Program& out);
};

}  // namespace ringcomm
