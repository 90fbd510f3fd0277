#include "cuda/spin_group.h"

#include <algorithm>

#include "cuda/group_cards.h"
#include "cuda/spin_failure.h"
#include "cuda/table.h"

namespace ringcomm::cuda {
namespace {

constexpr size_t kLists = 16;     // made beforehand: calls of lists that may be under way at once; guessed
constexpr size_t kFailures = 64;  // where they begin, behind the abort word

uint64_t* abort_word(const PinnedMemory& control) { return reinterpret_cast<uint64_t*>(control->host); }

}  // namespace

std::unique_ptr<SpinGroup> SpinGroup::make(DeviceRuntime& runtime, const SpinShape& shape, int rank, Error& error) {
  std::unique_ptr<SpinGroup> made(new SpinGroup(runtime, shape, rank));
  if (!made->reserve(error)) return nullptr;
  return made;
}

bool SpinGroup::reserve(Error& error) {
  const size_t blocks = static_cast<size_t>(shape_.fifos.blocks);
  control_ = pinned_memory(runtime_, kFailures + blocks * sizeof(Failure), error);
  if (!control_ || !programs_.reserve(error)) return false;
  if (!lists_.add(kLists, 2 * static_cast<size_t>(shape_.fifos.ranks), error)) return false;
  segment_ = device_memory(runtime_, layout_.bytes(), error);
  if (!segment_ || !runtime_.share(*segment_, layout_.bytes(), card_.segment, error)) return false;
  const DeviceFifoShape& s = shape_.fifos;
  card_.layout =
      layout_digest({static_cast<uint64_t>(s.ranks), static_cast<uint64_t>(s.blocks), s.slots, s.slot, s.low_latency});
  card_.rank = rank_, card_.mode = DeviceMode::spin;
  return true;
}

bool SpinGroup::connect(const std::vector<DeviceCard>& cards, const std::vector<char*>&, Error& error) {
  if (!check_cards(cards, card_, shape_.fifos.ranks, error)) return false;
  std::vector<PeerMemory> peers;
  std::vector<char*> segments;
  if (!import_segments(runtime_, cards, rank_, *segment_, peers, segments, error)) return false;
  peers_ = std::move(peers), segments_ = std::move(segments);
  return true;
}

int SpinGroup::load(const std::vector<int32_t>& table, Error& error) {
  if (segments_.empty()) return refuse(Cause::internal, "a program before the ranks are connected", error), -1;
  return programs_.load(table, segments_, error);
}

bool SpinGroup::fits(const DeviceCall& call, int blocks, Error& error) const {
  if (over_) return refuse(Cause::aborted, "this group has been ended", error);
  if (call.program < 0 || call.program >= programs_.size())
    return refuse(Cause::internal, "no program " + std::to_string(call.program) + " was loaded", error);
  const SpinProgram& program = programs_[call.program];
  if (!program.refusal[call.low_latency].empty())
    return refuse(Cause::internal, program.refusal[call.low_latency], error);
  if (static_cast<int>(call.in.size()) != program.program.nchunks_in ||
      static_cast<int>(call.out.size()) != program.program.nchunks_out)
    return refuse(Cause::internal, "the call's chunks are not those of the program", error);
  if (blocks < 1 || blocks > shape_.fifos.blocks)
    return refuse(Cause::internal,
                  std::to_string(blocks) + " blocks, the FIFOs are for " + std::to_string(shape_.fifos.blocks), error);
  const size_t bytes = call.piece * call.kernel.element, most = layout_.largest_piece(call.low_latency, blocks);
  if (bytes == 0 || bytes > most)
    return refuse(Cause::internal, "pieces have " + std::to_string(bytes) + " bytes, slots " + std::to_string(most),
                  error);
  return true;
}

bool SpinGroup::is_range(const std::vector<DeviceChunk>& chunks, size_t element, DeviceChunks& out) {
  out = {};
  if (chunks.empty()) return true;
  out.data = chunks[0].data, out.part = chunks[0].count;
  for (const DeviceChunk& c : chunks) out.count += c.count;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const DeviceChunk cut = chunk_of(out, static_cast<int32_t>(i), static_cast<uint32_t>(element));
    if (cut.count != chunks[i].count || (cut.count > 0 && cut.data != chunks[i].data)) return false;
  }
  return true;
}

bool SpinGroup::enqueue(const DeviceCall& call, StreamHandle stream, Error& error) {
  const int blocks = call.blocks == 0 ? shape_.fifos.blocks : call.blocks;
  if (!fits(call, blocks, error)) return false;
  const SpinProgram& program = programs_[call.program];
  KernelCall k = program.call[call.low_latency];
  k.abort = reinterpret_cast<const uint64_t*>(control_->device);
  k.failures = reinterpret_cast<Failure*>(control_->device + kFailures);
  k.piece = call.piece, k.factor = call.factor, k.tag = call.tag;
  k.timeout_ns = static_cast<uint64_t>(std::max<int64_t>(call.timeout_ns, 0));
  k.element = static_cast<uint32_t>(call.kernel.element), k.variant = call.kernel.variant;
  k.op = static_cast<uint32_t>(call.kernel.op);
  if (call.uneven) k.flags |= kCallSizedTags;
  if (call.premultiplied) k.flags |= kCallPremultiplied;

  const bool in_list = !is_range(call.in, call.kernel.element, k.in);
  const bool out_list = !is_range(call.out, call.kernel.element, k.out);
  SpinLists::List* list = nullptr;
  const size_t ins = in_list ? call.in.size() : 0;
  if (in_list || out_list) {
    list = lists_.take(ins + (out_list ? call.out.size() : 0), error);
    if (list == nullptr) return false;
    if (in_list) std::copy(call.in.begin(), call.in.end(), list->host);
    if (out_list) std::copy(call.out.begin(), call.out.end(), list->host + ins);
  }
  if (in_list) k.in = {nullptr, 0, 0, call.in.data()};
  if (out_list) k.out = {nullptr, 0, 0, call.out.data()};
  k.loops = loops_of(program.program, k);  // reads the lists, so they are the host's until here
  if (in_list) k.in.list = list->device;
  if (out_list) k.out.list = list->device + ins;

  if (!runtime_.launch(kernel_name(call.kernel.family), static_cast<unsigned>(blocks), shape_.threads, &k, stream,
                       error))
    return false;
  return list == nullptr || lists_.used(*list, stream, error);
}

bool SpinGroup::look(Error& error) const {
  return failure_of(reinterpret_cast<const Failure*>(control_->host + kFailures), shape_.fifos.blocks, rank_, error);
}

bool SpinGroup::end(StreamHandle stream, int64_t deadline_ns, Error& error) {
  over_ = true;
  __atomic_store_n(abort_word(control_), 1, __ATOMIC_RELEASE);
  return runtime_.drain(stream, deadline_ns, error);
}

}  // namespace ringcomm::cuda
