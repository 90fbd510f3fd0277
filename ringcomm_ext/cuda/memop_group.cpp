#include "cuda/memop_group.h"

#include <algorithm>

#include "cuda/group_cards.h"

namespace ringcomm::cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr int64_t kLookNs =
    200'000;  // how long a stream may go on by itself before its waits are ended once more; guessed

}  // namespace

std::unique_ptr<MemopGroup> MemopGroup::make(DeviceRuntime& runtime, const EnqueuerShape& shape, int rank,
                                             Error& error) {
  std::unique_ptr<MemopGroup> made(new MemopGroup(runtime, shape, rank));
  const size_t bytes = std::max<size_t>(made->layout_.data_bytes(), 1);
  made->segment_ = device_memory(runtime, bytes, error);
  if (!made->segment_ || !runtime.share(*made->segment_, bytes, made->card_.segment, error)) return nullptr;
  made->card_.layout = layout_digest(
      {static_cast<uint64_t>(shape.ranks), static_cast<uint64_t>(shape.slots), shape.pair, shape.fan_out});
  made->card_.rank = rank, made->card_.mode = DeviceMode::memop;
  return made;
}

size_t MemopGroup::flag_bytes() const { return (layout_.flag_bytes() + kPage - 1) / kPage * kPage; }

bool MemopGroup::connect(const std::vector<DeviceCard>& cards, const std::vector<char*>& flags, Error& error) {
  const int ranks = layout_.shape().ranks;
  if (!check_cards(cards, card_, ranks, error)) return false;
  if (static_cast<int>(flags.size()) != ranks)
    return refuse(Cause::internal, "flag pages of " + std::to_string(flags.size()) + " ranks", error);
  std::vector<PeerMemory> peers;
  std::vector<char*> segments;
  std::vector<RegisteredMemory> registered;
  if (!import_segments(runtime_, cards, rank_, *segment_, peers, segments, error)) return false;
  std::vector<RankSegments> all;
  for (int r = 0; r < ranks; ++r) {
    all.push_back({segments[static_cast<size_t>(r)], nullptr});
    if (flag_bytes() == 0) continue;  // one rank
    registered.push_back(registered_memory(runtime_, flags[static_cast<size_t>(r)], flag_bytes(), error));
    if (!registered.back()) return false;
    all.back().flags = registered.back()->device;
  }
  peers_ = std::move(peers), flags_ = std::move(registered);
  own_flags_ = flags[static_cast<size_t>(rank_)];
  enqueuer_ = std::make_unique<Enqueuer>(runtime_, layout_, rank_, std::move(all));
  return true;
}

int MemopGroup::load(const std::vector<int32_t>& table, Error& error) {
  if (const auto found = numbers_.find(table); found != numbers_.end()) return found->second;
  auto made = std::make_unique<Loaded>();
  std::string wrong = Program::load(table.data(), table.size(), made->program);
  if (wrong.empty()) wrong = Enqueuer::refusal(layout_, made->program, 0);
  if (!wrong.empty()) return refuse(Cause::internal, wrong, error), -1;
  made->largest_piece = SIZE_MAX;
  for (const auto* ends : {&made->program.senders, &made->program.receivers})
    for (const ConnectionRef& c : *ends)
      made->largest_piece = std::min(made->largest_piece, layout_.slot_bytes(c.kind));
  programs_.push_back(std::move(made));
  return numbers_[table] = static_cast<int>(programs_.size()) - 1;
}

bool MemopGroup::enqueue(const DeviceCall& call, StreamHandle stream, Error& error) {
  if (over_) return refuse(Cause::aborted, "this group has been ended", error);
  if (!enqueuer_) return refuse(Cause::internal, "a call before the ranks are connected", error);
  if (call.program < 0 || call.program >= static_cast<int>(programs_.size()))
    return refuse(Cause::internal, "no program " + std::to_string(call.program) + " was loaded", error);
  const Loaded& loaded = *programs_[static_cast<size_t>(call.program)];
  if (static_cast<int>(call.in.size()) != loaded.program.nchunks_in ||
      static_cast<int>(call.out.size()) != loaded.program.nchunks_out)
    return refuse(Cause::internal, "the call's chunks are not those of the program", error);
  const size_t bytes = call.piece * call.kernel.element;
  if (bytes == 0 || bytes > loaded.largest_piece)
    return refuse(Cause::internal,
                  "pieces have " + std::to_string(bytes) + " bytes, slots " + std::to_string(loaded.largest_piece),
                  error);
  EnqueuedCall c;
  c.program = &loaded.program;
  c.in = call.in, c.out = call.out;
  c.element = call.kernel.element, c.piece = call.piece;
  c.op = call.kernel.op, c.variant = call.kernel.variant;
  if (call.kernel.family != Family::bytes) c.kernel = combine_name(call.kernel.family);
  c.premultiplied = call.premultiplied, c.factor = call.factor, c.uneven = call.uneven;
  return enqueuer_->enqueue(c, stream, error);
}

bool MemopGroup::end(StreamHandle stream, int64_t deadline_ns, Error& error) {
  over_ = true;
  while (!runtime_.drain(stream, std::min(deadline_ns, now_ns() + kLookNs), error)) {
    if (error.cause != Cause::timeout || now_ns() > deadline_ns) return false;
    if (own_flags_ != nullptr) Enqueuer::end_waits(layout_, own_flags_);
  }
  return true;
}

void MemopGroup::disconnect() {
  enqueuer_.reset();
  flags_.clear(), peers_.clear();
}

}  // namespace ringcomm::cuda
