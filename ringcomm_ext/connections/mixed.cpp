#include "connections/mixed.h"

#include <map>
#include <string>
#include <utility>

namespace ringcomm {
namespace {

// One writer, readers on this node by `near` and elsewhere by `far`. A message is written into the far one's place, which is this process's own memory, and
// copied from there into the slot that the near readers map.
class MixedFanOut final : public Sender {
 public:
  MixedFanOut(Sender& near, Sender& far) : near_(near), far_(far), waits_for_(&far) {}

  char* reserve(size_t bytes) override {
    bytes_ = bytes;
    waits_for_ = &far_;
    char* place = far_.reserve(bytes);
    if (place == nullptr) return nullptr;
    waits_for_ = &near_;
    near_place_ = near_.reserve(bytes);
    return near_place_ ? place_ = place : nullptr;
  }
  void fill(char* place, const void* data, size_t bytes) override { far_.fill(place, data, bytes); }
  void publish(uint32_t tag) override {
    near_.fill(near_place_, place_, bytes_);
    near_.publish(tag);
    far_.publish(tag);
  }
  bool can_lend(const void* data, size_t bytes) const override {
    return near_.can_lend(data, bytes) && far_.can_lend(data, bytes);
  }
  void lend(const void* data, size_t bytes, uint32_t tag) override {
    near_.lend(data, bytes, tag);
    far_.lend(data, bytes, tag);
  }
  bool settled() override { return both(near_.settled(), far_.settled()); }
  bool returned() override { return both(near_.returned(), far_.returned()); }
  void take_back() override {
    near_.take_back();
    far_.take_back();
  }
  size_t capacity() const override { return near_.capacity(); }
  int waits_for() const override { return waits_for_->waits_for(); }
  const Error* error() const override { return far_.error() ? far_.error() : near_.error(); }

 private:
  bool both(bool near, bool far) {
    if (!near || !far) waits_for_ = near ? &far_ : &near_;
    return near && far;
  }

  Sender &near_, &far_;
  Sender* waits_for_;
  char *place_ = nullptr, *near_place_ = nullptr;
  size_t bytes_ = 0;
};

class MixedConnections final : public Connections {
 public:
  MixedConnections(const ShmLayout& layout, int rank, std::vector<ShmPeer> peers, MemoryBudget& budget,
                   std::unique_ptr<Connections> wire)
      : wire_(std::move(wire)), kind_(std::string("shm+") + wire_->kind()) {
    const auto own = static_cast<size_t>(rank);
    for (const ShmPeer& p : peers) near_.push_back(p.segment != nullptr);
    for (size_t r = 0; r < near_.size(); ++r) any_near_ |= near_[r] && r != own, any_far_ |= !near_[r];
    shm_ = make_shm_connections(layout, rank, std::move(peers), budget);
  }

  Sender* sender(ConnectionKind kind, int channel, int peer) override {
    if (kind == ConnectionKind::pair) return of(peer).sender(kind, channel, peer);
    if (!any_far_) return shm_->sender(kind, channel, peer);
    if (!any_near_) return wire_->sender(kind, channel, peer);
    auto& fan = fan_outs_[channel];
    if (!fan)
      fan = std::make_unique<MixedFanOut>(*shm_->sender(kind, channel, peer), *wire_->sender(kind, channel, peer));
    return fan.get();
  }
  Receiver* receiver(ConnectionKind kind, int channel, int peer) override {
    return of(peer).receiver(kind, channel, peer);
  }
  Sender* message_sender(int peer) override { return of(peer).message_sender(peer); }
  Receiver* message_receiver(int peer) override { return of(peer).message_receiver(peer); }
  const char* kind() const override { return kind_.c_str(); }

 private:
  Connections& of(int peer) const { return near_[static_cast<size_t>(peer)] ? *shm_ : *wire_; }

  std::vector<bool> near_;  // by rank
  bool any_near_ = false, any_far_ = false;
  std::unique_ptr<Connections> shm_, wire_;
  const std::string kind_;
  std::map<int, std::unique_ptr<MixedFanOut>> fan_outs_;  // by channel
};

}  // namespace

std::unique_ptr<Connections> make_mixed_connections(const ShmLayout& layout, int rank, std::vector<ShmPeer> peers,
                                                    MemoryBudget& budget, std::unique_ptr<Connections> wire) {
  return std::make_unique<MixedConnections>(layout, rank, std::move(peers), budget, std::move(wire));
}

}  // namespace ringcomm
