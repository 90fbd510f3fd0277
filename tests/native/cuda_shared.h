// Pages of the host that processes share, for tests of what a device registers.
#pragma once

#include <sys/mman.h>

#include <cstring>

#include "check.h"

namespace ringcomm::test {

struct SharedPages {
  explicit SharedPages(size_t n) : bytes(n) {
    void* const memory = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    at = static_cast<char*>(memory);
  }
  ~SharedPages() { munmap(at, bytes); }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  char* at;
  const size_t bytes;
};

}  // namespace ringcomm::test
