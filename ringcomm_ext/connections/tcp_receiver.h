// A Receiver over TCP. docs/tcp.md.
//
// Bytes lie in one buffer, frame behind frame. Small ones come many at a time; of a large one just what it lacks is asked for, and a line more, so that the
// next header comes with it and hardly anything is ever moved. The buffer is small until a large message comes.
//
// Threads: the receiver's (the holder of its lane); the poller attaches the socket, rings the doorbell, and sends counts that are late.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "connections/late_counts.h"
#include "connections/tcp_wire.h"
#include "core/connection.h"

namespace ringcomm {

class TcpReceiver final : public Receiver, public OwesCounts {
 public:
  TcpReceiver(TcpShared& shared, LateCounts& late, size_t capacity, int peer);
  ~TcpReceiver() override;

  // The writer's socket, which becomes this object's. Once; the poller, or the receiver's thread.
  bool attach(int fd);
  bool count_late() override;
  bool told() override;

  const char* peek(size_t bytes, uint32_t* tag) override;
  void release() override;
  void flush() override;
  size_t capacity() const override { return capacity_; }
  int peer() const override { return peer_; }
  const Error* error() const override { return error_ ? &error_ : nullptr; }

 private:
  static constexpr size_t kSmall = 1024;  // bytes of the small buffer
  static constexpr size_t kFront =
      kCacheLine - sizeof(FrameHeader);  // so that the payload at the front starts a cache line
  static bool is_large(size_t frame) { return frame > kSmall - kFront; }
  bool make_room(size_t frame);
  bool grow();
  bool receive(size_t bytes);
  void wake_sleepers_on_news();
  void send_count();
  void broke(const char* what);
  bool failed();

  TcpShared& shared_;
  LateCounts& late_;
  const size_t capacity_;
  const int peer_;
  Watch watch_;  // written before fd_
  std::atomic<int> fd_{-1};
  std::atomic<bool> armed_{false};

  alignas(kCacheLine) char small_[kSmall];
  BudgetedMemory large_;
  char* buffer_ = small_;
  size_t size_ = kSmall;
  size_t begin_ = kFront, end_ = kFront;  // what has come and is not released
  bool ready_ = false;                    // the first frame is whole

  uint32_t released_ = 0;
  bool asked_ = false;  // for the count, by a message released since the last one
  std::atomic<uint32_t> flushed_{0}, counted_{0};
  uint32_t seen_late_ = 0;  // the poller's
  std::atomic<bool> counting_{false};
  char count_[4];  // the one under way; belongs to who has set counting_
  size_t count_left_ = 0;

  int64_t broken_at_ = 0;
  Error reason_, error_;
};

}  // namespace ringcomm
