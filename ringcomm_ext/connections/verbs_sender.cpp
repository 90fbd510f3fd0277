#include "connections/verbs_sender.h"

#include <algorithm>
#include <utility>

namespace ringcomm {
namespace {

// Once settled() had to wait, so many further messages ask for their count: whoever waits once waits again.
constexpr int kAskFor = 1024;

}  // namespace

VerbsSender::VerbsSender(std::shared_ptr<VerbsShared> shared, LateCounts& late, size_t capacity,
                         const std::vector<Reader>& readers)
    : shared_(std::move(shared)),
      late_(late),
      device_(shared_->net.device(readers.empty() ? 0 : readers.front().greeting.channel)),
      outbox_(capacity, shared_->group.layout.slots),
      waits_for_(readers.empty() ? -1 : readers.front().rank) {
  for (const Reader& r : readers) links_.push_back(std::make_unique<VerbsLink>(*shared_, outbox_, r.greeting, r.rank));
}

bool VerbsSender::start() {
  if (started_) return true;
  if (!outbox_.lines.take(device_, outbox_.window() * sizeof(VerbsLine), ibv::kAccessLocalWrite, nullptr,
                          "the lines of a connection over verbs", error_))
    return false;
  started_ = true;
  for (const auto& link : links_) link->dial();
  return true;
}

bool VerbsSender::commit() {
  if (outbox_.payloads.data() != nullptr) return true;
  if (!outbox_.payloads.take(device_, outbox_.slots * outbox_.capacity, ibv::kAccessLocalWrite, &shared_->budget,
                             "the slots of a connection over verbs", error_))
    return false;
  for (const auto& link : links_) link->want_slots();
  return true;
}

// Whether no more can be hoped for; the reason shows after the time of grace.
bool VerbsSender::failed() {
  if (error_) return true;
  bool any = false;
  for (const auto& link : links_) {
    if (!link->broken()) continue;
    any = true;
    waits_for_ = link->peer();
    link->poll();  // the reason may still come
    if (link->lost(error_)) break;
  }
  return any;
}

// How many messages over 56 bytes came before this one, which is at most a window old.
uint64_t VerbsSender::payloads_below(uint64_t message) const {
  return message == next_ ? next_payload_ : outbox_.at(message).payload;
}

bool VerbsSender::has_room(bool small) { return next_ < until_ && (small || next_payload_ < until_payload_); }

// A place is free once the device has taken its last message to all readers, and none of them has to read what lies in its own.
bool VerbsSender::look_for_room(bool small) {
  uint64_t until = UINT64_MAX, until_payload = UINT64_MAX, slowest = UINT64_MAX;
  for (const auto& link : links_) {
    link->poll();
    const uint64_t done = std::min(link->counted(), link->through());
    const uint64_t mine = done + outbox_.window(), mine_payload = payloads_below(done) + outbox_.slots;
    const bool full = next_ >= mine || (!small && next_payload_ >= mine_payload);
    if (full && done < slowest) slowest = done, waits_for_ = link->peer();
    until = std::min(until, mine), until_payload = std::min(until_payload, mine_payload);
  }
  until_ = until, until_payload_ = until_payload;
  return has_room(small);
}

// There is no room before the connections, and the readers' slots, are there: a message that was published is on its way, also when its process ends without a word.
bool VerbsSender::connected(bool small) {
  if (small ? all_ready_ : all_have_slots_) return true;
  for (const auto& link : links_) {
    if (link->ready() && (small || link->has_slots())) continue;
    waits_for_ = link->peer();
    return false;
  }
  all_ready_ = true;
  all_have_slots_ |= !small;
  return true;
}

char* VerbsSender::reserve(size_t bytes) {
  if (failed() || !start()) return nullptr;
  const bool small = bytes <= kInlineBytes;
  if ((!small && !commit()) || !connected(small)) return nullptr;
  if (!has_room(small) && !look_for_room(small)) {
    bool news = false;
    for (const auto& link : links_) news |= link->wake_sleepers_on_news();
    if (!news || !look_for_room(small)) return nullptr;
  }
  reserved_ = bytes;
  return small ? outbox_.line(next_).payload : outbox_.slot(next_payload_);
}

void VerbsSender::publish(uint32_t tag) {
  const bool small = reserved_ <= kInlineBytes;
  VerbsLine& line = outbox_.line(next_);
  line.position = static_cast<uint32_t>(next_ + 1);
  line.tag = tag;
  VerbsOutbox::Entry& entry = outbox_.entries[next_ % outbox_.window()];
  entry = {static_cast<uint32_t>(reserved_), next_payload_};
  if (asked_ > 0) --asked_, entry.length |= kAskForCount;
  if (!small) ++next_payload_;
  outbox_.published.store(++next_, std::memory_order_seq_cst);
  for (const auto& link : links_) link->push();
  late_.note();
}

bool VerbsSender::settled() {
  bool all = true;
  for (const auto& link : links_) {
    if (link->counted() != next_) link->poll();
    if (link->counted() != next_ && link->wake_sleepers_on_news()) link->poll();
    if (link->counted() == next_) continue;
    asked_ = kAskFor;
    waits_for_ = link->peer();
    all = false;
  }
  if (!all) failed();
  return all;
}

bool VerbsSender::count_late() {
  const uint64_t published = outbox_.published.load(std::memory_order_seq_cst);
  const bool all = std::all_of(links_.begin(), links_.end(), [&](const auto& link) {
    return link->broken() || link->counted() == published || link->through() == published;
  });
  if (all) return false;
  const bool done = published == seen_late_ && over();
  seen_late_ = published;
  return !done;
}

bool VerbsSender::over() {
  return std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link->over(); });
}

}  // namespace ringcomm
