#include "core/program.h"

#include <algorithm>
#include <cstring>

namespace ringcomm {
namespace {

struct Shape {  // what an opcode may have
  int min_sources, max_sources;
  bool local_sources, receiver_sources;
  bool may_dst, must_dst, senders;
};

Shape shape_of(Opcode op) {
  constexpr int many = 1 << 20;
  switch (op) {
    case Opcode::copy:
      return {1, 1, true, false, true, true, false};
    case Opcode::send:
      return {1, 1, true, false, false, false, true};
    case Opcode::receive:
      return {1, 1, false, true, true, true, false};
    case Opcode::forward:
      return {1, 1, false, true, true, false, true};
    case Opcode::reduce:
      return {2, many, true, true, true, true, false};
    case Opcode::reduce_send:
      return {2, many, true, true, true, false, true};
    default:
      return {1, 1, false, true, false, false, false};
  }
}

class Reader {
 public:
  Reader(const ProgramHeader& h) : h_(h) {}

  bool ref(int32_t word, Ref& out) const {
    if (word == kNoRef) {
      out = Ref{};
      return true;
    }
    const int kind = word >> kRefKindShift;
    out.index = word & ((1 << kRefKindShift) - 1);
    if (word < 0 || kind > 3) return false;
    out.kind = static_cast<RefKind>(kind);
    const int limits[] = {h_.nchunks_in, h_.nchunks_out, h_.nreceivers, h_.nsenders};
    return out.index < limits[kind];
  }
  static bool local(const Ref& r) { return !r.none() && (r.kind == RefKind::in || r.kind == RefKind::out); }

 private:
  const ProgramHeader& h_;
};

std::string at(const char* what, int step, int value) {
  return std::string(what) + " of step " + std::to_string(step) + " is " + std::to_string(value);
}

// A connection gives or takes one slot a step.
const Ref* named_twice(const Ref* refs, int n) {
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < i; ++j)
      if (!Reader::local(refs[i]) && refs[i].kind == refs[j].kind && refs[i].index == refs[j].index) return &refs[i];
  return nullptr;
}

std::string check_step(const Program& p, const Step& s, int i) {
  const Shape shape = shape_of(s.opcode);
  if (s.nsources < shape.min_sources || s.nsources > shape.max_sources)
    return at("the number of sources", i, s.nsources);
  if (shape.senders ? s.nsenders < 1 : s.nsenders != 0) return at("the number of senders", i, s.nsenders);
  if (s.dst.none() ? shape.must_dst : !shape.may_dst || s.dst.kind != RefKind::out)
    return at("the destination", i, s.dst.index);
  if (!Reader::local(s.chunk)) return at("the governing chunk", i, s.chunk.index);
  // Without a destination the result of a reduction or a forward is nowhere but in the slots.
  const bool has_memory = shape.senders && (s.opcode == Opcode::send || !s.dst.none());
  if (s.lend != Lend::never && !has_memory) return at("flags", i, static_cast<int>(s.lend) << kLendShift);
  if (s.finish && s.opcode != Opcode::reduce && s.opcode != Opcode::reduce_send) return at("flags", i, kFlagFinish);
  for (int k = 0; k < s.nsources; ++k) {
    const Ref& r = p.sources(s)[k];
    const bool fits =
        Reader::local(r) ? shape.local_sources : r.kind == RefKind::receiver && shape.receiver_sources && !r.none();
    if (!fits) return at("a source", i, r.index);
  }
  for (int k = 0; k < s.nsenders; ++k)
    if (p.step_senders(s)[k].none() || p.step_senders(s)[k].kind != RefKind::sender)
      return at("a sender", i, p.step_senders(s)[k].index);
  if (const Ref* twice = named_twice(p.sources(s), s.nsources)) return at("a receiver named twice", i, twice->index);
  if (const Ref* twice = named_twice(p.step_senders(s), s.nsenders)) return at("a sender named twice", i, twice->index);
  return "";
}

}  // namespace

int Program::shared_out(int in) const {
  switch (collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce:
      return in < nchunks_out ? in : -1;
    case Collective::all_gather:
      return rank;
    case Collective::gather:
      return rank == root ? rank : -1;
    case Collective::reduce_scatter:
      return in == rank ? 0 : -1;
    case Collective::scatter:
      return rank == root && in == rank ? 0 : -1;
    default:
      return -1;
  }
}

std::string Program::load(const int32_t* words, size_t count, Program& out) {
  ProgramHeader h;
  if (count < sizeof(h) / sizeof(int32_t))
    return "the table has " + std::to_string(count) + " words, less than its header";
  std::memcpy(&h, words, sizeof h);
  if (h.magic != kProgramMagic) return "magic is " + std::to_string(h.magic);
  if (h.version != kProgramVersion)
    return "format version is " + std::to_string(h.version) + ", this build reads " + std::to_string(kProgramVersion);
  const int32_t counts[] = {h.nsteps, h.nrefs, h.nsenders, h.nreceivers, h.nchunks_in, h.nchunks_out, h.max_lag};
  for (int32_t c : counts)
    if (c < 0 || c > (1 << 24)) return "a count in the header is " + std::to_string(c);
  const size_t want = 16 + size_t{8} * h.nsteps + h.nrefs + size_t{3} * (h.nsenders + h.nreceivers);
  if (count != want)
    return "the table has " + std::to_string(count) + " words, its header says " + std::to_string(want);
  if (h.collective < 0 || h.collective > static_cast<int>(Collective::scatter))
    return "collective is " + std::to_string(h.collective);
  if (h.nranks < 1 || h.rank < 0 || h.rank >= h.nranks || h.root < -1 || h.root >= h.nranks)
    return "rank, root or nranks is out of range";
  if (h.slots < 1) return "slots is " + std::to_string(h.slots);
  if (h.flags & ~kFlagDrain) return "flags of the header is " + std::to_string(h.flags);
  if (h.reserved != 0) return "the reserved word of the header is not 0";

  out = Program{};
  out.collective = static_cast<Collective>(h.collective);
  out.nranks = h.nranks, out.rank = h.rank, out.root = h.root;
  out.nchunks_in = h.nchunks_in, out.nchunks_out = h.nchunks_out;
  out.max_lag = h.max_lag, out.slots = h.slots;
  out.drain = (h.flags & kFlagDrain) != 0;

  const Reader reader(h);
  const int32_t* steps = words + 16;
  const int32_t* refs = steps + 8 * h.nsteps;
  const int32_t* connections = refs + h.nrefs;
  for (int i = 0; i < h.nrefs; ++i) {
    Ref r;
    if (!reader.ref(refs[i], r) || r.none()) return "ref " + std::to_string(i) + " is " + std::to_string(refs[i]);
    out.refs.push_back(r);
  }
  int next_ref = 0, longest_lag = 0;
  for (int i = 0; i < h.nsteps; ++i) {
    PackedStep w;
    std::memcpy(&w, steps + 8 * i, sizeof w);
    if (w.opcode < 0 || w.opcode >= kOpcodes) return at("the opcode", i, w.opcode);
    if (w.flags < 0 || (w.flags >> kLendShift) > static_cast<int>(Lend::always)) return at("flags", i, w.flags);
    if (w.lag < 0 || w.lag > h.max_lag) return at("lag", i, w.lag);
    if (w.first_ref != next_ref || w.nsources < 0 || w.nsenders < 0 ||
        int64_t{w.first_ref} + w.nsources + w.nsenders > h.nrefs)
      return at("first ref", i, w.first_ref);
    next_ref += w.nsources + w.nsenders;
    longest_lag = std::max(longest_lag, w.lag);
    Step s{static_cast<Opcode>(w.opcode),
           (w.flags & kFlagFinish) != 0,
           static_cast<Lend>(w.flags >> kLendShift),
           w.lag,
           {},
           {},
           w.first_ref,
           w.nsources,
           w.nsenders};
    if (!reader.ref(w.chunk, s.chunk)) return at("the governing chunk", i, w.chunk);
    if (!reader.ref(w.dst, s.dst)) return at("the destination", i, w.dst);
    const std::string wrong = check_step(out, s, i);
    if (!wrong.empty()) return wrong;
    out.most_sources = std::max(out.most_sources, s.nsources);
    out.most_senders = std::max(out.most_senders, s.nsenders);
    out.steps.push_back(s);
  }
  if (next_ref != h.nrefs)
    return "nrefs is " + std::to_string(h.nrefs) + ", the steps name " + std::to_string(next_ref);
  if (longest_lag != h.max_lag)
    return "max_lag is " + std::to_string(h.max_lag) + ", the longest lag of a step is " + std::to_string(longest_lag);
  for (int i = 0; i < h.nsenders + h.nreceivers; ++i) {
    const int32_t* c = connections + 3 * i;
    const bool sends = i < h.nsenders;
    const bool fan = c[0] == static_cast<int>(ConnectionKind::fan_out);
    if (c[0] != 0 && !fan) return "the kind of connection " + std::to_string(i) + " is " + std::to_string(c[0]);
    if (!(fan && sends) && (c[1] < 0 || c[1] >= h.nranks || c[1] == h.rank))
      return "the peer of connection " + std::to_string(i) + " is " + std::to_string(c[1]);
    if (c[2] != 0) return "the reader set of connection " + std::to_string(i) + " is " + std::to_string(c[2]);
    (sends ? out.senders : out.receivers).push_back({static_cast<ConnectionKind>(c[0]), c[1]});
  }
  return "";
}

}  // namespace ringcomm
