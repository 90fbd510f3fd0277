// What goes over a control socket: frames of a fixed layout, little-endian like every machine this is built for. docs/control_plane.md says who sends
// which, and when. Both ends run the same version of ringcomm (the ranks compare it before they connect).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "connections/fd_exchange.h"
#include "core/status.h"
#include "engine/board.h"

namespace ringcomm {

enum class FrameKind : uint32_t { hello = 1, report, ask, failure, verdict, give_up, propose };

struct FrameHead {
  uint32_t bytes;  // of the body
  FrameKind kind;
};
inline constexpr uint32_t kMostFrameBytes = 1 << 20;  // a verdict of 128 Ki ranks; more is garbage

struct HelloBody {
  Nonce process;  // its key
};

struct CallBody {
  uint64_t sequence, bytes;
  int64_t age_ns;
  uint32_t what;  // Fingerprint::what()
  int32_t root;
  uint32_t schedule, reserved;
};

// All about a rank of a group that others may have to know.
struct ReportBody {
  Nonce topic;
  int32_t rank;
  RankState state;
  uint32_t came;   // newest monitored barrier it has come to
  uint32_t calls;  // how many of `call` count
  CallBody call[Board::kCalls];
};

struct AskBody {
  Nonce topic;
  int32_t rank;  // who asks
};

// failure, propose
struct FailureBody {
  Nonce topic;
  int32_t rank;  // who says so
  Error error;
};

// verdict: followed by ranks() pairs of words, {came, missed} by rank. give_up: only `number` counts, no words follow.
struct RollBody {
  Nonce topic;
  int32_t rank;
  uint32_t number;
  uint64_t word;
};

// False unless `body` is (or, with `more`, begins with) a T.
template <typename T>
bool unpack(const std::string& body, T& value, bool more = false) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (body.size() < sizeof(T) || (!more && body.size() != sizeof(T))) return false;
  std::memcpy(&value, body.data(), sizeof(T));
  return true;
}

}  // namespace ringcomm
