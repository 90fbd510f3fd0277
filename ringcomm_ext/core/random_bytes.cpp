#include "core/random_bytes.h"

#include <sys/random.h>

namespace ringcomm {

// Early in the life of a machine it waits for enough randomness; a signal may cut it short.
void fill_random(uint8_t* to, size_t bytes) {
  size_t have = 0;
  while (have < bytes) {
    const ssize_t got = getrandom(to + have, bytes - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
}

}  // namespace ringcomm
