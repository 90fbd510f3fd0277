// The writer's half of one socket: dials it, sends what the Outbox of its Sender holds, reads the reader's counts.
//
// Threads: the sender's thread (the holder of its lane) and the poller. Both may send, one at a time: who finds the other at it leaves, because the other looks
// once more when it is through. Counts are read by the sender's thread alone. Nobody waits for anybody.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "connections/tcp_wire.h"

namespace ringcomm {

// Published messages whose memory is still needed, shared by the links of a fan-out. Written by the sender's thread; an entry is used again once every link
// has taken it.
struct Outbox {
  struct Entry {
    const char* head;  // header, and the payload right behind it if it is not lent
    size_t head_bytes;
    const char* body;  // lent
    size_t body_bytes;
    size_t bytes() const { return head_bytes + padded(body_bytes); }
  };
  std::vector<Entry> entries;
  std::atomic<uint64_t> published{0};

  explicit Outbox(size_t slots) : entries(slots) {}
  const Entry& at(uint64_t message) const { return entries[message % entries.size()]; }
};

class TcpLink {
 public:
  TcpLink(TcpShared& shared, const Outbox& outbox, Greeting greeting, int peer);
  ~TcpLink();  // what is not sent yet goes on without it

  void dial();  // once; the sender's thread
  bool connected() const { return fd_.load(std::memory_order_acquire) >= 0; }
  // Sends what it can; only once connected. Any of the two threads.
  void push();
  uint64_t taken() const { return taken_.load(std::memory_order_acquire); }  // messages the kernel has whole
  uint64_t counted() const { return counted_; }  // released and flushed at the reader, as last read
  void read_counts();
  void take_back();  // lent memory is not touched any more
  // To be called before giving up for want of room or of a count: wakes this process's sleepers when there is something to look at.
  void wake_sleepers_on_news();
  // Fills `error` once it has been broken for the time of grace.
  bool broken() const { return broken_.load(std::memory_order_acquire) == kBroken; }
  bool lost(Error& error) const;
  int peer() const { return peer_; }

 private:
  static constexpr int kWhole = 0, kBreaking = 1, kBroken = 2;
  std::vector<std::string> addresses() const;
  void on_socket(int fd, const Error& error);
  bool delivered() const;
  void on_event();
  void send_all(int fd);
  ssize_t send_some(int fd, const Outbox::Entry& entry) const;
  void arm(uint32_t events);
  void fail(const Error& reason);
  void fail(const char* what);
  bool owes_lent() const;
  std::string rest() const;

  TcpShared& shared_;
  const Outbox& outbox_;
  const Greeting greeting_;
  const int peer_;
  TcpPort::DialId dial_id_ = 0;
  uint64_t registered_ = 0;  // at the port, for its settle()
  Watch watch_;              // written before fd_
  std::string address_;
  std::atomic<int> fd_{-1};
  std::atomic<uint32_t> armed_{0};  // events

  std::atomic<bool> sending_{false};
  std::atomic<bool> blocked_{false};  // the kernel is full; the poller will be told
  std::atomic<uint64_t> taken_{0};    // what follows belongs to who has set sending_
  std::atomic<size_t> done_{0};       // bytes of the next message that the kernel has

  uint64_t counted_ = 0;
  char count_[4];  // the beginning of one
  size_t count_bytes_ = 0;

  std::atomic<int> broken_{kWhole};
  Error reason_;  // written before broken_ is kBroken
  int64_t broken_at_ = 0;
};

}  // namespace ringcomm
