#include "device/lowering.h"

#include "engine/cutting.h"

namespace ringcomm {
namespace {

std::vector<cuda::DeviceChunk> device_chunks(const std::vector<Chunk>& chunks) {
  std::vector<cuda::DeviceChunk> all;
  for (const Chunk& c : chunks) all.push_back({c.data, c.count});
  return all;
}

bool choose_kernel(const Call& call, cuda::KernelChoice& out, std::string& error) {
  if (call.op == ReduceOp::none) return out = cuda::moving_kernel(call.element), true;
  if (cuda::reducing_kernel(call.dtype, call.op, out) && out.parts == 1) return true;
  error = std::string("no kernel for reduce op ") + name(call.op) + " of " + name(call.dtype);
  return false;
}

// The host's own conditions. Slots are its, too: a rule that fits there fits here.
std::string refusal(const GroupSpec& spec, const Program& program, size_t slot) {
  if (program.nranks != spec.ranks || program.rank != spec.rank)
    return "it is for rank " + std::to_string(program.rank) + " of " + std::to_string(program.nranks);
  if (program.slots > static_cast<int>(spec.layout.slots))
    return "it needs " + std::to_string(program.slots) + " slots, memory.slots is " + std::to_string(spec.layout.slots);
  for (const auto* table : {&program.senders, &program.receivers})
    for (const ConnectionRef& c : *table) {
      const bool fan = c.kind == ConnectionKind::fan_out;
      const size_t capacity = fan ? spec.layout.fan_out_capacity : spec.layout.pair_capacity;
      if (slot > capacity)
        return "its rule fills slots to " + std::to_string(slot) + " bytes, a slot of a " + (fan ? "fan-out" : "pair") +
               " connection holds " + std::to_string(capacity);
    }
  return "";
}

}  // namespace

std::shared_ptr<DeviceProgram> DevicePrograms::find(const Call& call, std::string& error) {
  const GroupSpec& spec = group_.spec();
  if (spec.rules[static_cast<size_t>(call.collective)].empty()) {
    error = std::string("no rule of the policy covers ") + name(call.collective);
    return nullptr;
  }
  const Rule& rule = group_.rule(call);
  const auto key = std::make_tuple(call.collective, rule.schedule, call.root);
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    if (const auto found = programs_.find(key); found != programs_.end()) return found->second;
  }
  auto fresh = std::make_shared<DeviceProgram>();
  fresh->table = spec.build(call.collective, rule.schedule, call.root, error);
  if (!error.empty()) return nullptr;
  Program program;
  error = Program::load(fresh->table.data(), fresh->table.size(), program);
  if (error.empty()) error = refusal(spec, program, rule.slot);
  if (!error.empty()) {
    error = "the program of schedule '" + rule.schedule + "' for " + name(call.collective) + " is refused: " + error;
    return nullptr;
  }
  fresh->chunks_in = program.nchunks_in, fresh->chunks_out = program.nchunks_out;
  const std::lock_guard<std::mutex> hold(mutex_);
  return programs_.emplace(key, std::move(fresh)).first->second;
}

Fingerprint device_fingerprint(const Call& call, uint64_t sequence) {
  return {call.collective, call.dtype, call.op, call.root, sequence, call.uniform ? call.bytes : 0, call.uniform, 0};
}

bool lower(const Communicator& group, const Call& call, const DeviceProgram& program, uint64_t sequence,
           cuda::DeviceCall& out, std::string& error) {
  const Rule& rule = group.rule(call);
  if (call.op != ReduceOp::none && group.travels_wide(call)) {
    error = "numerics.accumulate: float32 is for CPU tensors so far: on a device 16-bit floats travel as they are";
    return false;
  }
  if (!choose_kernel(call, out.kernel, error)) return false;
  const bool whole = is_cut(call.collective);
  out.in = device_chunks(whole ? cut(call.in, program.chunks_in, call.element) : call.in);
  out.out = device_chunks(whole ? cut(call.out, program.chunks_out, call.element) : call.out);
  if (static_cast<int>(out.in.size()) != program.chunks_in || static_cast<int>(out.out.size()) != program.chunks_out) {
    error = std::string("internal error: the buffers of ") + name(call.collective) + " do not fit its program";
    return false;
  }
  out.piece = std::max<size_t>(1, rule.slot / call.element);
  out.tag = device_fingerprint(call, sequence).hash();
  out.uneven = !call.uniform;
  return true;
}

}  // namespace ringcomm
