// A Sender over TCP: to one reader, or a fan-out with a socket per reader. docs/tcp.md.
#pragma once

#include <memory>
#include <vector>

#include "connections/tcp_link.h"
#include "core/connection.h"

namespace ringcomm {

class TcpSender final : public Sender {
 public:
  struct Reader {
    int rank;
    Greeting greeting;
  };
  TcpSender(TcpShared& shared, size_t capacity, const std::vector<Reader>& readers, const char* what);

  char* reserve(size_t bytes) override;
  void publish(uint32_t tag) override;
  // The kernel copies, so any memory will do; a small message is copied sooner than its end can be waited for.
  bool can_lend(const void*, size_t bytes) const override { return bytes > kInlineBytes; }
  void lend(const void* data, size_t bytes, uint32_t tag) override;
  bool settled() override;
  bool returned() override;
  void take_back() override;
  size_t capacity() const override { return capacity_; }
  int waits_for() const override { return waits_for_; }
  const Error* error() const override { return error_ ? &error_ : nullptr; }

 private:
  struct alignas(kCacheLine) InlineLine {
    FrameHeader header;
    char payload[kInlineBytes];
  };
  bool connected();
  bool has_room();
  bool commit();
  bool failed();
  void put(Outbox::Entry entry);
  char* slot() const { return memory_.data() + turn_ * (kCacheLine + capacity_) + kCacheLine; }

  TcpShared& shared_;
  const size_t capacity_;
  const uint32_t slots_, window_;
  const char* what_;
  std::vector<InlineLine> lines_;
  BudgetedMemory memory_;  // per slot: a line, at whose end the header stands, and the payload
  Outbox outbox_;
  std::vector<std::unique_ptr<TcpLink>> links_;
  bool dialled_ = false, connected_ = false;
  uint64_t next_ = 0;   // messages published
  uint64_t until_ = 0;  // there is room for messages below this, as far as was looked
  uint32_t turn_ = 0;   // line and slot of the next one
  size_t reserved_ = 0;
  int asked_ = 0;  // how many more messages ask for their count
  int waits_for_;
  Error error_;
};

}  // namespace ringcomm
