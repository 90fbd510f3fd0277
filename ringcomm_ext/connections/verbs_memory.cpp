#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "connections/verbs_device.h"

namespace ringcomm {
namespace {

bool over_budget(size_t bytes, const MemoryBudget& budget, const char* what, Error& error) {
  error.cause = Cause::no_memory;
  std::snprintf(
      error.text, sizeof error.text,
      "ringcomm: %s need %zu bytes; this process already has %zu of the %zu that `memory.limit` allows: raise "
      "memory.limit, or lower memory.slot or memory.slots",
      what, bytes, budget.used(), budget.limit());
  return false;
}

// The limit that most often stands in the way, in words.
std::string lock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return "; this process may lock " + std::to_string(limit.rlim_cur >> 10) +
         " KiB (ulimit -l; --ulimit memlock=-1 of a container)";
}

}  // namespace

bool VerbsMemory::take(const VerbsDevice& device, size_t bytes, int access, MemoryBudget* budget, const char* what,
                       Error& error) {
  if (budget && !budget->take(bytes)) return over_budget(bytes, *budget, what, error);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int failed = data == MAP_FAILED ? errno : 0;
  if (failed == 0) {
    madvise(data, bytes, MADV_DONTFORK);
    mr_ = device.library().reg_mr(device.pd(), data, bytes, access);
    failed = mr_ ? 0 : errno;
    if (mr_ == nullptr) munmap(data, bytes);
  }
  if (mr_ != nullptr) {
    data_ = static_cast<char*>(data), bytes_ = bytes, library_ = &device.library(), budget_ = budget;
    return true;
  }
  if (budget) budget->give(bytes);
  error.cause = Cause::no_memory;
  std::snprintf(error.text, sizeof error.text,
                "ringcomm: %s: %zu bytes cannot be registered with the RDMA device %s: %s%s", what, bytes,
                device.name().c_str(), std::strerror(failed), lock_limit().c_str());
  return false;
}

VerbsMemory::~VerbsMemory() {
  if (mr_ == nullptr) return;
  library_->dereg_mr(mr_);
  munmap(data_, bytes_);
  if (budget_) budget_->give(bytes_);
}

}  // namespace ringcomm
