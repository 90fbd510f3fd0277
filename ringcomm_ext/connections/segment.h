// Shared memory without names: a sealed memfd, passed to peers over a socket. Nothing is left after kill -9, and running out of memory is an
// Error when the memory is asked for, never a SIGBUS later.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "core/status.h"

namespace ringcomm {

// What this process may commit in shared memory, over all groups. Thread safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t limit) : limit_(limit) {}
  bool take(size_t bytes);
  void give(size_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  size_t used() const { return used_.load(std::memory_order_relaxed); }
  size_t limit() const { return limit_.load(std::memory_order_relaxed); }
  void set_limit(size_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<size_t> limit_;
  std::atomic<size_t> used_{0};
};

// A mapping of one memfd. A process maps a memfd once, however many ranks (threads) of it ask: so ranks as threads share addresses, which is
// what lets ThreadSanitizer see them. Shared by reference count. Not inherited by fork.
class Segment {
 public:
  // A new segment of `bytes`: address space only, no page is taken. On failure `error` is set and null returned.
  static std::shared_ptr<Segment> create(size_t bytes, Error& error);
  // Another rank's segment. Takes over the descriptor.
  static std::shared_ptr<Segment> open(int fd, Error& error);
  // Makes [offset, offset + bytes) of a peer's segment real memory, which counts in the peer's budget; for what several ranks write and its owner
  // may not have come to yet. Doing it twice is harmless.
  static bool commit_shared(int fd, size_t offset, size_t bytes, const char* what, Error& error);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_; }  // -1 on a segment opened from a peer
  bool contains(const void* data, size_t bytes) const {
    const char* from = static_cast<const char*>(data);
    return from >= data_ && from < data_ + size_ && bytes <= static_cast<size_t>(data_ + size_ - from);
  }
  // For large sparse ones: writing a core dump would fill every hole of it with a page.
  void exclude_from_dumps();
  // Makes [offset, offset + bytes) real memory. `what` names it in the error.
  bool commit(size_t offset, size_t bytes, MemoryBudget& budget, const char* what, Error& error);

 private:
  Segment(int fd, char* data, size_t size, unsigned long inode) : fd_(fd), data_(data), size_(size), inode_(inode) {}
  int fd_;
  char* data_;
  size_t size_;
  unsigned long inode_;
  int owner_ = 0;  // pid: a forked child has no such mapping and must not unmap whatever lies there
  std::atomic<MemoryBudget*> budget_{nullptr};  // two lanes may commit at once
  std::atomic<size_t> committed_{0};
};

}  // namespace ringcomm
