// Both copies move exactly the bytes asked for, at any size and alignment, with every instruction set this machine has.
// Build (from the repository root): g++ -std=c++17 -O3 -I ringcomm_ext tests/native/copy_test.cpp
//   ringcomm_ext/core/copy.cpp ringcomm_ext/core/isa.cpp
#include "core/copy.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/isa.h"

namespace {

using CopyFn = void (*)(void*, const void*, size_t);

constexpr size_t kGuard = 192;  // bytes on each side of the destination: more than any vector or line

// One copy of n bytes between the given misalignments; true if all n arrived and nothing around them changed.
bool moves_exactly(CopyFn copy, size_t n, size_t to_offset, size_t from_offset) {
  std::vector<unsigned char> from(n + from_offset), to(n + to_offset + 2 * kGuard);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>((i * 2654435761u) >> 13);
  for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<unsigned char>(0xa5 ^ i);
  const size_t begin = kGuard + to_offset;
  copy(to.data() + begin, from.data() + from_offset, n);
  for (size_t i = 0; i < to.size(); ++i) {
    const bool inside = i >= begin && i < begin + n;
    const unsigned char want = inside ? from[from_offset + i - begin] : static_cast<unsigned char>(0xa5 ^ i);
    if (to[i] != want) {
      std::printf("FAIL %zu bytes, dst +%zu, src +%zu: byte %zd of dst is %d, not %d\n", n, to_offset, from_offset,
                  static_cast<ptrdiff_t>(i) - static_cast<ptrdiff_t>(begin), to[i], want);
      return false;
    }
  }
  return true;
}

bool check(const char* what, CopyFn copy) {
  size_t copies = 0;
  const auto all_offsets = [&](size_t n, size_t step) {
    for (size_t to = 0; to < 64; to += step) {
      for (size_t from = 0; from < 64; from += step) {
        if (!moves_exactly(copy, n, to, from)) return false;
        ++copies;
      }
    }
    return true;
  };
  for (size_t n = 0; n <= 300; ++n) {
    if (!all_offsets(n, 7)) return false;
  }
  for (size_t n : {4096u, 65537u, 1000003u}) {
    if (!all_offsets(n, 31)) return false;
  }
  copy(nullptr, nullptr, 0);
  std::printf("  %s: %zu copies of 0..300, 4096, 65537, 1000003 bytes\n", what, copies);
  return true;
}

// In a child process, because the instruction set is chosen once.
bool check_isa(ringcomm::Isa isa) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setenv("RINGCOMM_ISA", ringcomm::name(isa), 1);
    bool good = ringcomm::chosen_isa() == isa;
    std::printf("%s%s\n", ringcomm::name(isa), good ? "" : ": FAIL RINGCOMM_ISA not followed");
    good = good && check("copy_cached", ringcomm::copy_cached) && check("copy_streaming", ringcomm::copy_streaming);
    std::fflush(stdout);
    std::_Exit(good ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

int main() {
  bool good = true;
  for (int i = 0; i < ringcomm::kIsas; ++i) {
    const ringcomm::Isa isa = static_cast<ringcomm::Isa>(i);
    if (!ringcomm::supported(isa)) {
      std::printf("%s: not on this processor\n", ringcomm::name(isa));
      continue;
    }
    if (!check_isa(isa)) good = false;
  }
  std::printf(good ? "copy_test: all passed\n" : "copy_test: FAILED\n");
  return good ? 0 : 1;
}
