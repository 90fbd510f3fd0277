// Registered memory of a process: one sparse memfd that every peer on the node maps whole, so that what is allocated here can be read by them
// where it lies. Unused, it costs a descriptor and address space, no page.
//
// Pages are taken when memory is given out, never later: running out is an Error that names bytes, limit and key, not a SIGBUS. What is freed keeps its
// pages for the next one that fits, up to as much as is in use (or kKeep); the rest goes back to the system.
//
// Any thread. A forked child sees the tensors it inherited, shared with its parent as tensor.share_memory_() would have it; it can neither allocate
// nor free in its parent's heap.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "connections/ranges.h"
#include "connections/segment.h"

namespace ringcomm {

class Heap {
 public:
  static constexpr size_t kAlign = 4096;             // of everything given out: a page
  static constexpr size_t kKeep = size_t{64} << 20;  // guessed: the buckets of a model of some ten million parameters

  // `limit`: most bytes it gives out. Null and `error` where the system refuses.
  static std::shared_ptr<Heap> create(size_t limit, Error& error);

  // `bytes` > 0, starting on a page. Null and `error` when the limit or the machine's memory is reached, or in a forked child.
  char* allocate(size_t bytes, Error& error);
  // What allocate() gave; in a forked child nothing happens, for the memory is the parent's.
  void release(void* data);

  bool contains(const void* data) const { return segment_->contains(data, 1); }
  bool inherited() const;  // by a fork: it is the parent's
  size_t limit() const { return limit_; }
  size_t used() const;  // bytes given out, in whole pages
  size_t kept() const;  // bytes free that still have their pages
  const std::shared_ptr<Segment>& segment() const { return segment_; }

 private:
  Heap(std::shared_ptr<Segment> segment, size_t limit);
  bool find(size_t bytes, size_t& offset, bool& backed);
  void drop_pages(Ranges::Range range);
  void drop_kept();
  void fail(size_t bytes, int code, Error& error) const;

  const std::shared_ptr<Segment> segment_;
  const size_t limit_;
  const int owner_;  // pid
  mutable std::mutex mutex_;
  Ranges backed_, bare_;                      // free, with and without pages
  std::unordered_map<size_t, size_t> given_;  // bytes by offset
  size_t used_ = 0;
};

}  // namespace ringcomm
