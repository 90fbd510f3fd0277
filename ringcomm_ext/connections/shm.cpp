#include "connections/shm.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "connections/slot_copy.h"

namespace ringcomm {
namespace {

constexpr size_t kPage = 4096;
size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

class ShmSender final : public Sender {
 public:
  struct Reader {
    int rank;
    Doorbell* doorbell;
  };
  ShmSender(Segment& segment, ShmLayout::Place place, FifoShape shape, std::vector<Reader> readers, Segment* heap,
            MemoryBudget& budget, const char* what)
      : fifo_(segment.data() + place.header, segment.data() + place.payload, shape),
        segment_(segment),
        payload_(place.payload),
        readers_(std::move(readers)),
        heap_(heap),
        budget_(budget),
        what_(what) {}

  char* reserve(size_t bytes) override {
    if (!committed_ && (bytes > kInlineBytes || error_) && !commit()) return nullptr;
    return fifo_.reserve(bytes);
  }
  void publish(uint32_t tag) override {
    fifo_.publish(tag);
    for (const Reader& r : readers_) r.doorbell->ring();
  }
  void fill(char* place, const void* data, size_t bytes) override { copy_(place, data, bytes); }
  bool can_lend(const void* data, size_t bytes) const override {
    return bytes > kInlineBytes && heap_ != nullptr && heap_->contains(data, bytes);
  }
  void lend(const void* data, size_t, uint32_t tag) override {
    fifo_.refer(static_cast<uint64_t>(static_cast<const char*>(data) - heap_->data()));
    publish(tag);
  }
  bool settled() override { return fifo_.settled(); }
  size_t capacity() const override { return fifo_.shape().capacity; }
  int waits_for() const override { return readers_[fifo_.slowest_reader()].rank; }
  const Error* error() const override { return error_ ? &error_ : nullptr; }

 private:
  bool commit() {
    if (error_) return false;
    committed_ = segment_.commit(payload_, fifo_.shape().payload_bytes(), budget_, what_, error_);
    return committed_;
  }

  FifoWriter fifo_;
  Segment& segment_;
  size_t payload_;
  std::vector<Reader> readers_;
  Segment* const heap_;  // this process's own
  MemoryBudget& budget_;
  const char* what_;
  SlotCopy copy_;
  bool committed_ = false;
  Error error_;
};

class ShmReceiver final : public Receiver {
 public:
  ShmReceiver(const ShmPeer& from, ShmLayout::Place place, FifoShape shape, uint32_t reader, int peer)
      : fifo_(from.segment->data() + place.header, from.segment->data() + place.payload, shape, reader, 0,
              from.heap ? from.heap->data() : nullptr),
        peer_(peer),
        capacity_(shape.capacity),
        writer_(*from.doorbell) {}

  const char* peek(size_t bytes, uint32_t* tag) override { return fifo_.peek(bytes, tag); }
  bool lent() const override { return fifo_.lent(); }
  void release() override { fifo_.release(); }
  void flush() override {
    if (!fifo_.unflushed()) return;
    fifo_.flush();
    writer_.ring();
  }
  size_t capacity() const override { return capacity_; }
  int peer() const override { return peer_; }
  const Error* error() const override { return nullptr; }

 private:
  FifoReader fifo_;
  int peer_;
  size_t capacity_;
  Doorbell& writer_;
};

class ShmConnections final : public Connections {
 public:
  ShmConnections(const ShmLayout& layout, int rank, std::vector<ShmPeer> peers, MemoryBudget& budget)
      : layout_(layout), rank_(rank), peers_(std::move(peers)), budget_(budget) {
    const int n = layout.ranks;
    fan_senders_.resize(layout.channels);
    for (auto* table : {&fan_receivers_, &pair_receivers_}) table->resize(layout.channels * n);
    pair_senders_.resize(layout.channels * n);
    message_senders_.resize(n);
    message_receivers_.resize(n);
  }

  Sender* sender(ConnectionKind kind, int channel, int peer) override {
    if (kind == ConnectionKind::fan_out) {
      auto& s = fan_senders_[channel];
      if (!s)
        s = make_sender(layout_.fan_out_at(channel), fan_out(), everyone_else(), "the slots of a fan-out connection");
      return s.get();
    }
    auto& s = pair_senders_[channel * layout_.ranks + peer];
    if (!s)
      s = make_sender(layout_.pair_at(channel, peer), layout_.pair(), {reader(peer)}, "the slots of a pair connection");
    return s.get();
  }
  Receiver* receiver(ConnectionKind kind, int channel, int peer) override {
    const bool fan = kind == ConnectionKind::fan_out;
    auto& r = (fan ? fan_receivers_ : pair_receivers_)[channel * layout_.ranks + peer];
    if (!r)
      r = make_receiver(fan ? layout_.fan_out_at(channel) : layout_.pair_at(channel, rank_),
                        fan ? fan_out() : layout_.pair(), fan ? index_at(peer) : 0, peer);
    return r.get();
  }
  Sender* message_sender(int peer) override {
    auto& s = message_senders_[peer];
    if (!s)
      s = make_sender(layout_.message_at(peer), layout_.message(), {reader(peer)},
                      "the slots of a point-to-point connection");
    return s.get();
  }
  Receiver* message_receiver(int peer) override {
    auto& r = message_receivers_[peer];
    if (!r) r = make_receiver(layout_.message_at(rank_), layout_.message(), 0, peer);
    return r.get();
  }
  const char* kind() const override { return "shm"; }

 private:
  ShmSender::Reader reader(int peer) const { return {peer, peers_[peer].doorbell}; }
  std::vector<ShmSender::Reader> everyone_else() const {
    std::vector<ShmSender::Reader> all;
    for (int r = 0; r < layout_.ranks; ++r)
      if (r != rank_ && is_here(r)) all.push_back(reader(r));
    return all;
  }
  bool is_here(int rank) const { return peers_[rank].segment != nullptr; }
  // A fan-out's readers are the other ranks of the node, in order.
  FifoShape fan_out() const {
    FifoShape shape = layout_.fan_out();
    const auto here =
        std::count_if(peers_.begin(), peers_.end(), [](const ShmPeer& p) { return p.segment != nullptr; });
    shape.readers = static_cast<uint32_t>(std::max<std::ptrdiff_t>(here - 1, 1));
    return shape;
  }
  uint32_t index_at(int writer) const {
    uint32_t index = 0;
    for (int r = 0; r < rank_; ++r) index += r != writer && is_here(r);
    return index;
  }
  std::unique_ptr<Sender> make_sender(ShmLayout::Place place, FifoShape shape, std::vector<ShmSender::Reader> readers,
                                      const char* what) {
    const ShmPeer& own = peers_[rank_];
    return std::make_unique<ShmSender>(*own.segment, place, shape, std::move(readers), own.heap.get(), budget_, what);
  }
  std::unique_ptr<Receiver> make_receiver(ShmLayout::Place place, FifoShape shape, uint32_t index, int peer) {
    return std::make_unique<ShmReceiver>(peers_[peer], place, shape, index, peer);
  }

  ShmLayout layout_;
  int rank_;
  std::vector<ShmPeer> peers_;
  MemoryBudget& budget_;
  std::vector<std::unique_ptr<Sender>> fan_senders_, pair_senders_, message_senders_;
  std::vector<std::unique_ptr<Receiver>> fan_receivers_, pair_receivers_, message_receivers_;
};

}  // namespace

size_t ShmLayout::header_bytes() const {
  const size_t n = ranks;
  return pages(channels * (fan_out().header_bytes() + n * pair().header_bytes()) + n * message().header_bytes());
}

size_t ShmLayout::bytes() const { return board_at() + pages(board_bytes); }

size_t ShmLayout::board_at() const {
  const size_t n = ranks;
  return header_bytes() + channels * (fan_out().payload_bytes() + n * pair().payload_bytes()) +
         n * message().payload_bytes();
}

ShmLayout::Place ShmLayout::fan_out_at(int channel) const {
  return {channel * fan_out().header_bytes(), header_bytes() + channel * fan_out().payload_bytes()};
}

ShmLayout::Place ShmLayout::pair_at(int channel, int peer) const {
  const size_t i = size_t(channel) * ranks + peer;
  return {channels * fan_out().header_bytes() + i * pair().header_bytes(),
          header_bytes() + channels * fan_out().payload_bytes() + i * pair().payload_bytes()};
}

ShmLayout::Place ShmLayout::message_at(int peer) const {
  const size_t pairs = size_t(channels) * ranks;
  return {channels * fan_out().header_bytes() + pairs * pair().header_bytes() + peer * message().header_bytes(),
          header_bytes() + channels * fan_out().payload_bytes() + pairs * pair().payload_bytes() +
              peer * message().payload_bytes()};
}

std::unique_ptr<Connections> make_shm_connections(const ShmLayout& layout, int rank, std::vector<ShmPeer> peers,
                                                  MemoryBudget& budget) {
  return std::make_unique<ShmConnections>(layout, rank, std::move(peers), budget);
}

}  // namespace ringcomm
