#include "connections/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

namespace ringcomm {
namespace {

constexpr size_t kPage = 4096;

// Mappings of this process by inode. Leaked on purpose: threads of ours may outlive static destruction.
struct Registry {
  std::mutex mutex;
  std::map<unsigned long, std::weak_ptr<Segment>> by_inode;
};
Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

void fail(Error& error, const char* what, size_t bytes, int code, const char* hint) {
  error.cause = Cause::no_memory;
  std::snprintf(error.text, sizeof error.text, "ringcomm: %s: cannot have %zu bytes of shared memory: %s%s", what,
                bytes, std::strerror(code), hint);
}

}  // namespace

bool MemoryBudget::take(size_t bytes) {
  const size_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
  if (before + bytes <= limit()) return true;
  give(bytes);
  return false;
}

std::shared_ptr<Segment> Segment::create(size_t bytes, Error& error) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  const int fd = memfd_create("ringcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    fail(error, "memfd_create", bytes, errno, "");
    if (fd >= 0) close(fd);
    return nullptr;
  }
  auto segment = open(dup(fd), error);
  if (segment)
    segment->fd_ = fd;
  else
    close(fd);
  return segment;
}

std::shared_ptr<Segment> Segment::open(int fd, Error& error) {
  struct stat st;
  if (fd < 0 || fstat(fd, &st) != 0) {
    fail(error, "a peer's segment", 0, errno, "");
    return nullptr;
  }
  const auto size = static_cast<size_t>(st.st_size);
  Registry& r = registry();
  const std::lock_guard<std::mutex> hold(r.mutex);
  if (auto known = r.by_inode[st.st_ino].lock()) {
    close(fd);
    return known;
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int code = errno;
  close(fd);
  if (data == MAP_FAILED) {
    r.by_inode.erase(st.st_ino);
    fail(error, "mmap", size, code, "");
    return nullptr;
  }
  madvise(data, size, MADV_DONTFORK);
  std::shared_ptr<Segment> segment(new Segment(-1, static_cast<char*>(data), size, st.st_ino));
  segment->owner_ = getpid();
  r.by_inode[st.st_ino] = segment;
  return segment;
}

Segment::~Segment() {
  if (owner_ != getpid()) return;
  Registry& r = registry();
  const std::lock_guard<std::mutex> hold(r.mutex);
  auto it = r.by_inode.find(inode_);
  if (it != r.by_inode.end() && it->second.expired()) r.by_inode.erase(it);
  munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
  if (MemoryBudget* budget = budget_.load()) budget->give(committed_.load());
}

void Segment::exclude_from_dumps() { madvise(data_, size_, MADV_DONTDUMP); }

bool Segment::commit_shared(int fd, size_t offset, size_t bytes, const char* what, Error& error) {
  if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) return true;
  fail(error, what, bytes, errno,
       " (shared memory is full: free some, enlarge the container's memory, or lower memory.slot or memory.slots)");
  return false;
}

bool Segment::commit(size_t offset, size_t bytes, MemoryBudget& budget, const char* what, Error& error) {
  const size_t first = offset / kPage * kPage;
  const size_t length = (offset + bytes + kPage - 1) / kPage * kPage - first;
  if (!budget.take(length)) {
    error.cause = Cause::no_memory;
    std::snprintf(error.text, sizeof error.text,
                  "ringcomm: %s needs %zu bytes of shared memory; this process already has %zu of the %zu that "
                  "`memory.limit` allows: raise memory.limit, or "
                  "lower memory.slot or memory.slots",
                  what, length, budget.used(), budget.limit());
    return false;
  }
  budget_ = &budget;
  committed_ += length;
  if (!commit_shared(fd_, first, length, what, error)) return false;
  // Populating costs half of what faulting page by page does; where the kernel is too old for it, faults do the work.
  madvise(data_ + first, length, MADV_POPULATE_WRITE);
  return true;
}

}  // namespace ringcomm
