#include "cuda/layout.h"

#include <algorithm>

#include "cuda/cells.h"
#include "cuda/table.h"

namespace ringcomm::cuda {
namespace {

constexpr size_t kAlign = 128;  // a line of a device's cache

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

DeviceLayout::DeviceLayout(const DeviceFifoShape& shape) : shape_(shape) {
  const size_t peers = static_cast<size_t>(std::max(shape.ranks - 1, 1)), blocks = static_cast<size_t>(shape.blocks);
  stripe_[0] = stripe_of(static_cast<uint32_t>(shape.slot), static_cast<uint32_t>(blocks));
  stripe_[1] = kLowLatencyHeader +
               2 * size_t{stripe_of(static_cast<uint32_t>(shape.low_latency), static_cast<uint32_t>(blocks))};
  for (int low = 0; low < 2; ++low) slot_bytes_[low] = round_up(stripe_[low] * blocks, kAlign);
  reserve(2 * peers * blocks, sizeof(HeadLine), heads_);
  reserve(4 * peers * blocks, sizeof(CreditLine), credits_);
  reserve(4 * peers * blocks, sizeof(uint32_t), sender_positions_);
  reserve(4 * peers * blocks, sizeof(uint32_t), receiver_positions_);
  for (const ConnectionKind kind : {ConnectionKind::pair, ConnectionKind::fan_out}) {
    reserve(kind == ConnectionKind::pair ? peers : 1, slot_bytes_[0] * shape.slots, slots_[fifo(false, kind)]);
    if (shape.low_latency > 0) reserve(peers, slot_bytes_[1] * shape.slots, slots_[fifo(true, kind)]);
  }
}

size_t DeviceLayout::reserve(size_t count, size_t each, Part& part) {
  part = {bytes_, each};
  return bytes_ = round_up(bytes_ + count * each, kAlign);
}

std::string DeviceLayout::refusal(const Program& program, bool low_latency) const {
  if (low_latency && shape_.low_latency == 0) return "these FIFOs have no low latency slots";
  if (program.nranks != shape_.ranks)
    return "the program is for " + std::to_string(program.nranks) + " ranks, the FIFOs are for " +
           std::to_string(shape_.ranks);
  if (shape_.slots < static_cast<uint32_t>(program.slots) || shape_.slots > kMaxSlots ||
      (shape_.slots & (shape_.slots - 1)) != 0)
    return "the program was verified for " + std::to_string(program.slots) + " slots, the FIFOs have " +
           std::to_string(shape_.slots) + " (a power of two up to " + std::to_string(kMaxSlots) + " is allowed)";
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& s = program.steps[i];
    int targets = s.dst.none() ? 0 : 1;
    for (int k = 0; k < s.nsenders; ++k) {
      const ConnectionRef& to = program.senders[static_cast<size_t>(program.step_senders(s)[k].index)];
      targets += low_latency && to.kind == ConnectionKind::fan_out ? program.nranks - 1 : 1;
    }
    if (s.nsources > kMaxSources || targets > kMaxTargets)
      return "step " + std::to_string(i) + " has " + std::to_string(s.nsources) + " sources and " +
             std::to_string(targets) + " targets; a kernel takes " + std::to_string(kMaxSources) + " and " +
             std::to_string(kMaxTargets);
  }
  return "";
}

// Where a reader finds what a writer puts: with the reader, but for the one copy of a plain fan-out.
char* DeviceLayout::slots_for(bool low_latency, ConnectionKind kind, int writer, int reader,
                              const std::vector<char*>& segments) const {
  const Part& part = slots_[fifo(low_latency, kind)];
  if (!low_latency && kind == ConnectionKind::fan_out) return segments[writer] + part.at;
  return segments[reader] + part.at + skip_self(writer, reader) * part.each;
}

// The lines of all blocks for one end, in the segment of `owner`.
template <class Line>
Line* DeviceLayout::lines(const Part& part, char* segment, int fifo, int owner, int peer) const {
  const int peers = std::max(shape_.ranks - 1, 1);
  const size_t index = static_cast<size_t>(fifo * peers + skip_self(peer, owner)) * static_cast<size_t>(shape_.blocks);
  return reinterpret_cast<Line*>(segment + part.at + index * part.each);
}

DeviceEnds DeviceLayout::ends(const Program& program, bool low_latency, const std::vector<char*>& segments) const {
  DeviceEnds all;
  const int self = program.rank;
  for (const ConnectionRef& c : program.senders) {
    const int q = fifo(low_latency, c.kind);
    SenderEnd end = {};
    end.first_reader = static_cast<int32_t>(all.readers.size());
    for (int r = 0; r < program.nranks; ++r) {
      if (r == self || (c.kind == ConnectionKind::pair && r != c.peer)) continue;
      all.readers.push_back({slots_for(low_latency, c.kind, self, r, segments),
                             lines<HeadLine>(heads_, segments[r], static_cast<int>(c.kind), r, self),
                             lines<CreditLine>(credits_, segments[self], q, self, r), r});
    }
    end.readers = static_cast<int32_t>(all.readers.size()) - end.first_reader;
    end.copies = low_latency ? end.readers : 1;
    const int place = c.kind == ConnectionKind::pair ? c.peer : (self == 0 ? 1 : 0);  // a fan-out has one
    end.positions = lines<uint32_t>(sender_positions_, segments[self], q, self, place);
    all.senders.push_back(end);
  }
  for (const ConnectionRef& c : program.receivers) {
    const int q = fifo(low_latency, c.kind);
    all.receivers.push_back({slots_for(low_latency, c.kind, c.peer, self, segments),
                             lines<HeadLine>(heads_, segments[self], static_cast<int>(c.kind), self, c.peer),
                             lines<CreditLine>(credits_, segments[c.peer], q, c.peer, self),
                             lines<uint32_t>(receiver_positions_, segments[self], q, self, c.peer), c.peer});
  }
  return all;
}

void DeviceLayout::describe(bool low_latency, KernelCall& call) const {
  call.slots = shape_.slots;
  call.stripe = static_cast<uint32_t>(stripe_[low_latency]);
  call.slot_bytes = static_cast<uint32_t>(slot_bytes_[low_latency]);
  call.flags = low_latency ? call.flags | kCallLowLatency : call.flags & ~kCallLowLatency;
}

size_t DeviceLayout::largest_piece(bool low_latency, int blocks) const {
  return (low_latency ? (stripe_[1] - kLowLatencyHeader) / 2 : stripe_[0]) * static_cast<size_t>(blocks);
}

uint64_t loops_of(const Program& program, const KernelCall& call) {
  uint64_t longest = 0;
  for (const Step& s : program.steps) {
    const DeviceChunk c = chunk_of(s.chunk.kind == RefKind::in ? call.in : call.out, s.chunk.index, call.element);
    longest = std::max(longest, (c.count + call.piece - 1) / call.piece);
  }
  if ((call.flags & kCallSizedTags) && !program.steps.empty()) longest = std::max<uint64_t>(longest, 1);
  return longest;
}

}  // namespace ringcomm::cuda
