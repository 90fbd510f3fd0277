#include "connections/tcp_sender.h"

#include <algorithm>
#include <cstring>

namespace ringcomm {
namespace {

// Once settled() had to wait, so many further messages ask for their count: whoever waits once waits again.
constexpr int kAskFor = 1024;

}  // namespace

TcpSender::TcpSender(TcpShared& shared, size_t capacity, const std::vector<Reader>& readers, const char* what)
    : shared_(shared),
      capacity_(capacity),
      slots_(shared.group.layout.slots),
      window_(window(slots_)),
      what_(what),
      lines_(slots_),
      outbox_(slots_),
      waits_for_(readers.empty() ? -1 : readers.front().rank) {
  for (const Reader& r : readers) links_.push_back(std::make_unique<TcpLink>(shared, outbox_, r.greeting, r.rank));
}

bool TcpSender::commit() {
  if (memory_.data() != nullptr) return true;
  return memory_.take(slots_ * (kCacheLine + capacity_), shared_.budget, what_, error_);
}

// Whether no more can be hoped for; the reason shows after the time of grace.
bool TcpSender::failed() {
  if (error_) return true;
  bool any = false;
  for (const auto& link : links_) {
    if (!link->broken()) continue;
    any = true;
    waits_for_ = link->peer();
    if (link->lost(error_)) break;
  }
  return any;
}

// A place is free once every link has taken its last message; and no reader may be a window behind.
bool TcpSender::has_room() {
  if (next_ < until_) return true;
  uint64_t until = UINT64_MAX;
  for (const auto& link : links_) {
    if (next_ - link->counted() >= window_) link->read_counts();
    if (next_ - link->taken() >= slots_) link->push();
    const uint64_t mine = std::min(link->taken() + slots_, link->counted() + window_);
    if (mine < until) until = mine, waits_for_ = link->peer();
  }
  until_ = until;
  if (next_ < until_) return true;
  for (const auto& link : links_) link->wake_sleepers_on_news();
  return false;
}

// There is no room before the sockets are there: a message that was published is on its way, also when its process ends without a word.
bool TcpSender::connected() {
  if (connected_) return true;
  if (!dialled_)
    for (const auto& link : links_) link->dial();
  dialled_ = true;
  for (const auto& link : links_) {
    if (link->connected()) continue;
    waits_for_ = link->peer();
    return false;
  }
  return connected_ = true;
}

char* TcpSender::reserve(size_t bytes) {
  if (failed() || !connected()) return nullptr;
  if (bytes > kInlineBytes && !commit()) return nullptr;
  if (!has_room()) return nullptr;
  reserved_ = bytes;
  return bytes <= kInlineBytes ? lines_[turn_].payload : slot();
}

void TcpSender::put(Outbox::Entry entry) {
  outbox_.entries[turn_] = entry;
  if (++turn_ == slots_) turn_ = 0;
  outbox_.published.store(++next_, std::memory_order_seq_cst);
  for (const auto& link : links_) link->push();
}

void TcpSender::publish(uint32_t tag) {
  FrameHeader header{tag, static_cast<uint32_t>(reserved_)};
  if (asked_ > 0) --asked_, header.length |= kAskCount;
  char* const payload = reserved_ <= kInlineBytes ? lines_[turn_].payload : slot();
  std::memcpy(payload - sizeof header, &header, sizeof header);
  put({payload - sizeof header, sizeof header + padded(reserved_), nullptr, 0});
}

void TcpSender::lend(const void* data, size_t bytes, uint32_t tag) {
  FrameHeader& header = lines_[turn_].header;
  header = {tag, static_cast<uint32_t>(bytes)};
  if (asked_ > 0) --asked_, header.length |= kAskCount;
  put({reinterpret_cast<const char*>(&header), sizeof header, static_cast<const char*>(data), bytes});
}

bool TcpSender::returned() {
  if (failed()) return false;
  for (const auto& link : links_) {
    if (link->taken() != next_) link->push();
    if (link->taken() == next_) continue;
    waits_for_ = link->peer();
    return false;
  }
  return true;
}

bool TcpSender::settled() {
  bool all = true;
  for (const auto& link : links_) {
    if (link->counted() != next_) link->read_counts();
    if (link->counted() == next_) continue;
    asked_ = kAskFor;
    waits_for_ = link->peer();
    link->wake_sleepers_on_news();
    all = false;
  }
  if (!all) failed();
  return all;
}

void TcpSender::take_back() {
  for (const auto& link : links_) link->take_back();
}

}  // namespace ringcomm
