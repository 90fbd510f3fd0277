#include "core/status.h"

namespace ringcomm {

const char* name(Cause cause) {
  static const char* const names[] = {"none",    "timeout",   "peer_died", "peer_left", "mismatch",
                                      "aborted", "no_memory", "internal",  "connection"};
  const auto i = static_cast<unsigned>(cause);
  return i < sizeof(names) / sizeof(*names) ? names[i] : "?";
}

}  // namespace ringcomm
