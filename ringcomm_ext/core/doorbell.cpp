#include "core/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace ringcomm {

bool futex_sleep(std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_ns, bool shared) {
  const timespec t{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  const int op = FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG);
  return syscall(SYS_futex, &word, op, seen, &t, nullptr, 0) != 0 && errno == EINTR;
}

void futex_wake_all(std::atomic<uint32_t>& word, bool shared) {
  syscall(SYS_futex, &word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG), INT_MAX, nullptr, nullptr, 0);
}

bool Doorbell::sleep(uint32_t seen, int64_t timeout_ns) { return futex_sleep(word, seen, timeout_ns, true); }

void Doorbell::wake() {
  word.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(word, true);
}

}  // namespace ringcomm
