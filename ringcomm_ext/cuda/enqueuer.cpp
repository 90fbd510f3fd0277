#include "cuda/enqueuer.h"

#include <algorithm>

namespace ringcomm::cuda {
namespace {

constexpr uint32_t kFull = 1, kEmpty = 0;             // `full`
constexpr uint32_t kFree = 0, kTaken = 0xffffffff;    // `room`: taken is -1
constexpr uint32_t kEnded = 0x40000000;               // past all of them, by signed distance
constexpr unsigned kThreads = 256, kMostBlocks = 64;  // guessed
constexpr size_t kBytesOfBlock = 64 << 10;            // guessed

}  // namespace

// One call on its way into a stream.
class Enqueuer::Walk {
 public:
  Walk(const Enqueuer& of, const EnqueuedCall& call, StreamHandle stream, Error& error)
      : of_(of),
        call_(call),
        program_(*call.program),
        stream_(stream),
        error_(error),
        sent_(program_.senders.size(), 0),
        taken_(program_.receivers.size(), 0) {}

  bool run() {
    const size_t turns = loops();
    for (size_t turn = 0; turn < turns; ++turn)
      for (const Step& step : program_.steps)
        if (!run_step(step, turn)) return false;
    return !program_.drain || wait_for_readers();
  }

 private:
  const EnqueuedChunk& chunk(const Ref& ref) const {
    return (ref.kind == RefKind::in ? call_.in : call_.out)[static_cast<size_t>(ref.index)];
  }
  size_t loops() const {
    size_t longest = 0;
    for (const Step& s : program_.steps)
      longest = std::max(longest, (chunk(s.chunk).count + call_.piece - 1) / call_.piece);
    if (call_.uneven && !program_.steps.empty()) longest = std::max<size_t>(longest, 1);
    return longest == 0 ? 0 : longest + static_cast<size_t>(program_.max_lag);
  }

  uint32_t* flag(int rank, size_t offset) const {
    return reinterpret_cast<uint32_t*>(of_.segments_[static_cast<size_t>(rank)].flags + offset);
  }
  bool wait(int rank, size_t offset, uint32_t value) {
    return of_.runtime_.wait_flag(flag(rank, offset), value, stream_, error_);
  }
  bool write(int rank, size_t offset, uint32_t value) {
    return of_.runtime_.write_flag(flag(rank, offset), value, stream_, error_);
  }
  int slot(size_t message) const { return static_cast<int>(message % static_cast<size_t>(of_.layout_.shape().slots)); }
  char* slot_address(const ConnectionRef& c, int writer, int reader, size_t message) const {
    const int owner = c.kind == ConnectionKind::pair ? reader : writer;
    return of_.segments_[static_cast<size_t>(owner)].data + of_.layout_.slot(c.kind, writer, reader, slot(message));
  }
  // Calls `each(reader)` until one is false.
  template <typename Each>
  bool readers(const ConnectionRef& c, const Each& each) const {
    if (c.kind == ConnectionKind::pair) return each(c.peer);
    for (int r = 0; r < program_.nranks; ++r)
      if (r != of_.rank_ && !each(r)) return false;
    return true;
  }

  bool run_step(const Step& step, size_t turn) {
    const size_t lag = static_cast<size_t>(step.lag);
    if (turn < lag) return true;
    const size_t first = (turn - lag) * call_.piece, count = chunk(step.chunk).count;
    if (first >= count && !(call_.uneven && count == 0 && first == 0)) return true;
    sources_.clear(), targets_.clear();
    const size_t at = first * call_.element;
    if (!open_sources(step, at) || !open_targets(step, at)) return false;
    if (!act(step, std::min(call_.piece, count - first))) return false;
    return publish(step) && release(step);
  }

  bool open_sources(const Step& step, size_t at) {
    for (int k = 0; k < step.nsources; ++k) {
      const Ref& ref = program_.sources(step)[k];
      if (ref.kind != RefKind::receiver) {
        sources_.push_back({chunk(ref).data + at, ref.kind == RefKind::in && call_.premultiplied});
        continue;
      }
      const ConnectionRef& c = program_.receivers[static_cast<size_t>(ref.index)];
      const size_t message = taken_[static_cast<size_t>(ref.index)];
      const size_t full = of_.layout_.full(c.kind, c.peer, of_.rank_, slot(message));
      if (!wait(of_.rank_, full, kFull) || !write(of_.rank_, full, kEmpty)) return false;
      sources_.push_back({slot_address(c, c.peer, of_.rank_, message), false});
    }
    return true;
  }

  bool open_targets(const Step& step, size_t at) {
    if (!step.dst.none()) targets_.push_back(chunk(step.dst).data + at);
    for (int k = 0; k < step.nsenders; ++k) {
      const size_t index = static_cast<size_t>(program_.step_senders(step)[k].index);
      const ConnectionRef& c = program_.senders[index];
      const bool good = readers(c, [&](int reader) {
        const size_t room = of_.layout_.room(c.kind, of_.rank_, reader, slot(sent_[index]));
        return wait(of_.rank_, room, kFree) && write(of_.rank_, room, kTaken);
      });
      if (!good) return false;
      targets_.push_back(slot_address(c, of_.rank_, c.peer, sent_[index]));
    }
    return true;
  }

  bool act(const Step& step, size_t count) {
    if (count == 0 || step.opcode == Opcode::skip) return true;
    const bool reduces = step.opcode == Opcode::reduce || step.opcode == Opcode::reduce_send;
    if (reduces || sources_[0].scaled) return combine(step, count);
    for (char* target : targets_)
      if (target != sources_[0].data &&
          !of_.runtime_.copy(target, sources_[0].data, count * call_.element, stream_, error_))
        return false;
    return true;
  }

  bool combine(const Step& step, size_t count) {
    CombineCall c = {};
    for (const Source& source : sources_) {
      c.scaled[c.nsources / 64] |= static_cast<uint64_t>(source.scaled) << (c.nsources % 64);
      c.sources[c.nsources++] = source.data;
    }
    for (char* target : targets_) c.targets[c.ntargets++] = target;
    c.count = count;
    c.factor = call_.factor;
    c.op = static_cast<uint32_t>(call_.op);
    c.variant = call_.variant;
    c.divisor = step.finish && call_.op == ReduceOp::avg ? static_cast<uint32_t>(program_.nranks) : 0;
    const size_t blocks = (count * call_.element + kBytesOfBlock - 1) / kBytesOfBlock;
    return of_.runtime_.launch(call_.kernel, static_cast<unsigned>(std::min<size_t>(blocks, kMostBlocks)), kThreads, &c,
                               stream_, error_);
  }

  bool publish(const Step& step) {
    for (int k = 0; k < step.nsenders; ++k) {
      const size_t index = static_cast<size_t>(program_.step_senders(step)[k].index);
      const ConnectionRef& c = program_.senders[index];
      const int s = slot(sent_[index]++);
      if (!readers(c, [&](int reader) { return write(reader, of_.layout_.full(c.kind, of_.rank_, reader, s), kFull); }))
        return false;
    }
    return true;
  }

  bool release(const Step& step) {
    for (int k = 0; k < step.nsources; ++k) {
      const Ref& ref = program_.sources(step)[k];
      if (ref.kind != RefKind::receiver) continue;
      const ConnectionRef& c = program_.receivers[static_cast<size_t>(ref.index)];
      const int s = slot(taken_[static_cast<size_t>(ref.index)]++);
      if (!write(c.peer, of_.layout_.room(c.kind, c.peer, of_.rank_, s), kFree)) return false;
    }
    return true;
  }

  bool wait_for_readers() {
    for (size_t i = 0; i < program_.senders.size(); ++i) {
      const ConnectionRef& c = program_.senders[i];
      const size_t used = std::min(sent_[i], static_cast<size_t>(of_.layout_.shape().slots));
      for (size_t s = 0; s < used; ++s)
        if (!readers(c, [&](int reader) {
              return wait(of_.rank_, of_.layout_.room(c.kind, of_.rank_, reader, static_cast<int>(s)), kFree);
            }))
          return false;
    }
    return true;
  }

  struct Source {
    const char* data;
    bool scaled;
  };
  const Enqueuer& of_;
  const EnqueuedCall& call_;
  const Program& program_;
  const StreamHandle stream_;
  Error& error_;
  std::vector<size_t> sent_, taken_;  // messages of this call, by connection
  std::vector<Source> sources_;       // of the step
  std::vector<char*> targets_;
};

std::string Enqueuer::refusal(const EnqueuerLayout& layout, const Program& program, size_t piece_bytes) {
  const EnqueuerShape& shape = layout.shape();
  if (program.nranks != shape.ranks)
    return "the program is for " + std::to_string(program.nranks) + " ranks, the slots are for " +
           std::to_string(shape.ranks);
  if (shape.slots < program.slots)
    return "the program was verified for " + std::to_string(program.slots) + " slots, there are " +
           std::to_string(shape.slots);
  for (const auto* ends : {&program.senders, &program.receivers})
    for (const ConnectionRef& c : *ends)
      if (piece_bytes > layout.slot_bytes(c.kind))
        return "pieces have " + std::to_string(piece_bytes) + " bytes, slots " +
               std::to_string(layout.slot_bytes(c.kind));
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const Step& s = program.steps[i];
    if (s.nsources > kMostCombined || s.nsenders + 1 > kMostCombineTargets)
      return "step " + std::to_string(i) + " has " + std::to_string(s.nsources) + " sources and " +
             std::to_string(s.nsenders) + " senders; " + std::to_string(kMostCombined) + " and " +
             std::to_string(kMostCombineTargets - 1) + " are the most";
  }
  return "";
}

bool Enqueuer::enqueue(const EnqueuedCall& call, StreamHandle stream, Error& error) const {
  return Walk(*this, call, stream, error).run();
}

void Enqueuer::end_waits(const EnqueuerLayout& layout, char* flags) {
  for (size_t at = 0; at < layout.flag_bytes(); at += 64)
    __atomic_store_n(reinterpret_cast<uint32_t*>(flags + at), kEnded, __ATOMIC_RELEASE);
}

}  // namespace ringcomm::cuda
