#include "connections/heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ringcomm {
namespace {

size_t pages(size_t bytes) { return (bytes + Heap::kAlign - 1) / Heap::kAlign * Heap::kAlign; }

}  // namespace

std::shared_ptr<Heap> Heap::create(size_t limit, Error& error) {
  limit = limit / kAlign * kAlign;
  std::shared_ptr<Segment> segment = Segment::create(std::max(limit, kAlign), error);
  if (!segment) return nullptr;
  // A data loader's worker reads the tensors it inherited: they must not vanish in it.
  madvise(segment->data(), segment->size(), MADV_DOFORK);
  segment->exclude_from_dumps();
  return std::shared_ptr<Heap>(new Heap(std::move(segment), limit));
}

Heap::Heap(std::shared_ptr<Segment> segment, size_t limit)
    : segment_(std::move(segment)), limit_(limit), owner_(getpid()) {
  if (limit_ > 0) bare_.add(0, limit_);
}

bool Heap::inherited() const { return owner_ != getpid(); }

size_t Heap::used() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  return used_;
}

size_t Heap::kept() const {
  const std::lock_guard<std::mutex> hold(mutex_);
  return backed_.total();
}

char* Heap::allocate(size_t bytes, Error& error) {
  if (inherited()) {
    error.cause = Cause::internal;
    std::snprintf(error.text, sizeof error.text,
                  "ringcomm: registered memory of process %d cannot be allocated in its forked child %d", owner_,
                  static_cast<int>(getpid()));
    return nullptr;
  }
  const size_t size = pages(std::max<size_t>(bytes, 1));
  size_t offset;
  bool backed;
  if (bytes > limit_ || !find(size, offset, backed)) {
    fail(bytes, 0, error);
    return nullptr;
  }
  // Without the lock: the range is this call's alone, and taking pages is slow.
  if (!backed && fallocate(segment_->fd(), 0, static_cast<off_t>(offset), static_cast<off_t>(size)) != 0) {
    fail(bytes, errno, error);
    const std::lock_guard<std::mutex> hold(mutex_);
    used_ -= size;
    drop_pages({offset, size});
    return nullptr;
  }
  // As in Segment::commit: half of what faulting page by page costs.
  if (!backed) madvise(segment_->data() + offset, size, MADV_POPULATE_WRITE);
  const std::lock_guard<std::mutex> hold(mutex_);
  given_.emplace(offset, size);
  return segment_->data() + offset;
}

// Counts the range as used at once, so that the limit holds while its pages are taken.
bool Heap::find(size_t bytes, size_t& offset, bool& backed) {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (bytes > limit_ - used_) return false;
  backed = backed_.take(bytes, offset);
  // What is free but kept counts too: the limit is for pages.
  if (!backed && used_ + backed_.total() + bytes > limit_) drop_kept();
  if (!backed && !bare_.take(bytes, offset)) {
    drop_kept();
    if (!bare_.take(bytes, offset)) return false;
  }
  used_ += bytes;
  return true;
}

void Heap::release(void* data) {
  if (inherited()) return;
  const size_t offset = static_cast<size_t>(static_cast<char*>(data) - segment_->data());
  const std::lock_guard<std::mutex> hold(mutex_);
  const auto it = given_.find(offset);
  if (it == given_.end()) return;  // not ours to judge: a deleter must not throw
  const size_t bytes = it->second;
  given_.erase(it);
  used_ -= bytes;
  const Ranges::Range range = backed_.add(offset, bytes);
  if (backed_.total() <= std::max(used_, kKeep)) return;
  backed_.remove(range);
  drop_pages(range);
}

// Every process that has these pages mapped loses them; one that reads here nevertheless sees zeros.
void Heap::drop_pages(Ranges::Range range) {
  fallocate(segment_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.offset),
            static_cast<off_t>(range.bytes));
  bare_.add(range.offset, range.bytes);
}

void Heap::drop_kept() {
  while (!backed_.empty()) {
    const Ranges::Range range = backed_.first();
    backed_.remove(range);
    drop_pages(range);
  }
}

void Heap::fail(size_t bytes, int code, Error& error) const {
  const std::lock_guard<std::mutex> hold(mutex_);
  error.cause = Cause::no_memory;
  const char* why = code != 0                ? std::strerror(code)
                    : bytes > limit_ - used_ ? "that is more than is left"
                                             : "no part of it is large enough";
  std::snprintf(error.text, sizeof error.text,
                "ringcomm: cannot have %zu bytes of registered memory: %s. This process has %zu of the %zu that "
                "`memory.registered` allows (largest free part %zu): raise memory.registered%s, or free some",
                bytes, why, used_, limit_, std::max(bare_.largest(), backed_.largest()),
                code != 0 ? " or give the container more memory" : "");
}

}  // namespace ringcomm
