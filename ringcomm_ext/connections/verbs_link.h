// The writer's half of one queue pair: dials its reader, posts what the Outbox of its Sender holds, takes in the reader's counts.
//
// Threads: the sender's thread (the holder of its lane) and the poller, which makes the connection and sees to its end. Both may post, and both may poll, one at
// a time (Turn). Nobody waits for anybody.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "connections/verbs_peer.h"

namespace ringcomm {

// Published messages whose memory is still needed, shared by the links of a fan-out. Written by the sender's thread; an entry is used again once every link is
// through with it.
struct VerbsOutbox {
  struct Entry {
    uint32_t length;   // with kAskForCount
    uint64_t payload;  // number of the payload among those over 56 bytes, if it is one of them; else of the next
    bool small() const { return (length & ~kAskForCount) <= kInlineBytes; }
  };
  const size_t capacity;
  const uint32_t slots;
  std::vector<Entry> entries;  // as many as the window
  VerbsMemory lines, payloads;
  std::atomic<uint64_t> published{0};

  VerbsOutbox(size_t capacity, uint32_t slots) : capacity(capacity), slots(slots), entries(verbs_window(slots)) {}
  uint32_t window() const { return static_cast<uint32_t>(entries.size()); }
  const Entry& at(uint64_t message) const { return entries[message % entries.size()]; }
  VerbsLine& line(uint64_t message) const {
    return reinterpret_cast<VerbsLine*>(lines.data())[message % entries.size()];
  }
  char* slot(uint64_t payload) const { return payloads.data() + payload % slots * capacity; }
};

class VerbsLink {
 public:
  VerbsLink(VerbsShared& shared, const VerbsOutbox& outbox, const Greeting& greeting, int peer);
  ~VerbsLink();

  void dial();        // once; the sender's thread
  void want_slots();  // once, when a first message needs one; the sender's thread
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  bool has_slots() const { return has_slots_.load(std::memory_order_acquire); }
  // Posts what was published, if it is ready (and has slots) for it. Any of the two threads.
  void push();
  // Takes in what has completed. Any of the two threads.
  void poll();
  uint64_t counted() const { return counted_.load(std::memory_order_acquire); }  // released and flushed at the reader
  uint64_t through() const { return through_.load(std::memory_order_acquire); }  // the device needs them no more
  // To be called before giving up for want of room or of a count: wakes this process's sleepers when there is something to look at. True if there is already.
  bool wake_sleepers_on_news();
  bool broken() const { return other_.broken(); }
  bool lost(Error& error) const { return other_.lost(error); }
  bool over();
  int peer() const { return other_.rank(); }

 private:
  void connected(int fd, const Error& error);
  bool make_queue(Error& error);
  void on_note();
  bool heed(const Note& note);
  void ask_for_slots();
  int post(uint64_t message);
  int post_line(uint64_t message);
  int post_slot(uint64_t message);
  int post_last(ibv::SendWr& request, uint64_t message, bool signaled);
  void mark();

  VerbsShared& shared_;
  VerbsDevice& device_;
  const VerbsOutbox& outbox_;
  const Greeting greeting_;
  TcpPort::DialId dial_id_ = 0;

  std::mutex meeting_;  // what follows: how the two ends met. Never taken in the way of data
  VerbsPeer other_;     // the reader
  bool answered_ = false, wants_slots_ = false, asked_ = false;

  std::unique_ptr<VerbsQueue> queue_;  // written before ready_
  uint64_t their_lines_ = 0, their_slots_ = 0;
  uint32_t lines_key_ = 0, slots_key_ = 0;
  std::atomic<bool> ready_{false}, has_slots_{false};

  std::atomic<bool> posting_{false};
  std::atomic<uint64_t> posted_{0};  // what follows belongs to whose turn it is to post
  uint64_t marked_ = 0;              // a completion below this tells that all before is through

  std::atomic<bool> polling_{false};
  std::atomic<uint64_t> counted_{0}, through_{0};
};

}  // namespace ringcomm
