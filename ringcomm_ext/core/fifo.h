// A FIFO of slots in memory it is given: one writer, a fixed set of readers (a pair is the case of one).
//
// Header: one tail per reader, then one line per slot. A line is the cache line that says "slot published" and carries up to
// 56 bytes itself, so a small message costs one line transfer and no slot. Payload: `slots` cells of `capacity` bytes, untouched
// until a message over 56 bytes comes. A message over 56 bytes may lie in the writer's heap instead: the line then says where.
//
// Positions count messages for ever (mod 2^32); lines and slots are used in turn. Each end keeps its place in the turn beside its position:
// position % slots would jump at 2^32 unless slots is a power of two. The writer publishes position p by storing p + 1 into the line's
// position; a reader that has taken everything below q stores q into its tail. No pointer is stored: both ends may map the memory anywhere.
//
// Who may call: one thread at a time per end. Order: payload before line (the publishing store), reads before tail. These stores are
// sequentially consistent because a sleeper's flag is looked at right after them (doorbell.h): store-then-look on both sides.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/types.h"

namespace ringcomm {

inline constexpr size_t kCacheLine = 64;

struct alignas(kCacheLine) Line {
  std::atomic<uint32_t> position;
  uint32_t tag;  // fingerprint of the call this slot belongs to
  union {
    char payload[kInlineBytes];
    uint64_t lent;  // of a message over 56 bytes: 0 it is in the slot, else 1 + its offset in the writer's heap
  };
};
static_assert(sizeof(Line) == kCacheLine);

struct alignas(kCacheLine) Tail {
  std::atomic<uint32_t> position;
};
static_assert(sizeof(Tail) == kCacheLine);

struct FifoShape {
  uint32_t slots = 4;
  size_t capacity = 0;  // bytes of one slot
  uint32_t readers = 1;
  size_t header_bytes() const { return (readers + slots) * kCacheLine; }
  size_t payload_bytes() const { return slots * capacity; }
};

#ifdef RINGCOMM_PLANTED_RELAXED_PUBLISH  // scripts/sanitize proves with this that ThreadSanitizer would see a wrong order
inline constexpr auto kPublishOrder = std::memory_order_relaxed;
#else
inline constexpr auto kPublishOrder = std::memory_order_seq_cst;
#endif

class FifoWriter {
 public:
  FifoWriter() = default;
  // `position`: where the FIFO stands; 0 in fresh (zeroed) memory.
  FifoWriter(char* header, char* payload, FifoShape shape, uint32_t position = 0)
      : tails_(reinterpret_cast<Tail*>(header)),
        lines_(reinterpret_cast<Line*>(header + shape.readers * kCacheLine)),
        payload_(payload),
        shape_(shape),
        next_(position),
        slowest_(position) {}

  // Where to write the next message of `bytes` (at most the capacity); nullptr while the slowest reader is a whole FIFO behind.
  char* reserve(size_t bytes) {
    if (next_ - slowest_ >= shape_.slots && !look_at_tails()) return nullptr;
    inline_ = bytes <= kInlineBytes;
    if (inline_) return lines_[turn_].payload;
    lent_ = 0;
    return payload_ + turn_ * shape_.capacity;
  }
  // After a reserve(0) that gave room: the next message, over 56 bytes, lies at this offset of the writer's heap, and stays there until settled().
  void refer(uint64_t heap_offset) {
    inline_ = false;
    lent_ = heap_offset + 1;
  }
  void publish(uint32_t tag) {
    Line& line = lines_[turn_];
    if (!inline_) line.lent = lent_;  // not before: the reader polls this line, and would fetch it twice
    line.tag = tag;
    line.position.store(++next_, kPublishOrder);
    if (++turn_ == shape_.slots) turn_ = 0;
  }
  // True once every reader has released everything that was published.
  bool settled() { return next_ == slowest_ || (look_at_tails(), next_ == slowest_); }
  // The reader that holds the writer up: meaningful after reserve() gave nullptr or settled() false.
  uint32_t slowest_reader() const { return slowest_reader_; }
  const FifoShape& shape() const { return shape_; }

 private:
  // The tails are the readers' cache lines: looked at only when the cached bound is used up, that is once per `slots` messages.
  bool look_at_tails() {
    uint32_t oldest = next_;
    for (uint32_t r = 0; r < shape_.readers; ++r) {
      const uint32_t tail = tails_[r].position.load(std::memory_order_seq_cst);
      if (next_ - tail > next_ - oldest) {
        oldest = tail;
        slowest_reader_ = r;
      }
    }
    slowest_ = oldest;
    return next_ - slowest_ < shape_.slots;
  }

  Tail* tails_ = nullptr;
  Line* lines_ = nullptr;
  char* payload_ = nullptr;
  FifoShape shape_;
  uint32_t next_ = 0;     // position of the next message
  uint32_t slowest_ = 0;  // no reader's tail was below this when last looked at
  uint32_t turn_ = 0;     // line and slot of the next message
  uint32_t slowest_reader_ = 0;
  bool inline_ = true;  // the message last reserved
  uint64_t lent_ = 0;   // where it is, if it is not inline: Line::lent
};

class FifoReader {
 public:
  FifoReader() = default;
  // `heap`: where this process has the writer's heap mapped; null if it has none.
  FifoReader(char* header, char* payload, FifoShape shape, uint32_t reader, uint32_t position = 0,
             const char* heap = nullptr)
      : tail_(reinterpret_cast<Tail*>(header) + reader),
        lines_(reinterpret_cast<Line*>(header + shape.readers * kCacheLine)),
        payload_(payload),
        heap_(heap),
        shape_(shape),
        next_(position),
        flushed_(position) {}

  // The next message, or nullptr while it is not there. `bytes` must be what the writer reserved.
  const char* peek(size_t bytes, uint32_t* tag) const {
    const Line& line = lines_[turn_];
    if (line.position.load(std::memory_order_seq_cst) != next_ + 1) return nullptr;
    *tag = line.tag;
    if (bytes <= kInlineBytes) return line.payload;
    return line.lent == 0 ? payload_ + turn_ * shape_.capacity : heap_ + (line.lent - 1);
  }
  // Whether the message over 56 bytes that peek() showed lies in the writer's heap.
  bool lent() const { return lines_[turn_].lent != 0; }
  // Done with the message peek() showed. The writer learns of it at flush(): many small messages, one store.
  void release() {
    ++next_;
    if (++turn_ == shape_.slots) turn_ = 0;
  }
  bool unflushed() const { return next_ != flushed_; }
  // Before its thread gives up for want of progress, and at the end of a program, a reader must flush: the writer may be waiting.
  void flush() { tail_->position.store(flushed_ = next_, std::memory_order_seq_cst); }

 private:
  Tail* tail_ = nullptr;
  const Line* lines_ = nullptr;
  const char* payload_ = nullptr;
  const char* heap_ = nullptr;
  FifoShape shape_;
  uint32_t next_ = 0;
  uint32_t flushed_ = 0;
  uint32_t turn_ = 0;
};

}  // namespace ringcomm
