// The ends of one rank's connections over a wire, as the greetings of their sockets name them. For the wires' Connections only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "connections/wire_group.h"

namespace ringcomm {

struct WireEnd {
  enum Kind : uint8_t { pair = 0, fan_out = 1, messages = 2, kinds = 3 };
  Kind kind = pair;
  int channel = 0;
  int other = -1;  // rank; -1: a fan-out's own sender

  bool operator<(const WireEnd& than) const {
    return std::tie(kind, channel, other) < std::tie(than.kind, than.channel, than.other);
  }
};

inline size_t capacity_of(const WireEnd& end, const ShmLayout& layout) {
  switch (end.kind) {
    case WireEnd::fan_out:
      return layout.fan_out_capacity;
    case WireEnd::messages:
      return layout.message_capacity;
    default:
      return layout.pair_capacity;
  }
}

// The ranks that read what this end sends.
inline std::vector<int> readers_of(const WireEnd& end, const WireGroup& group) {
  if (end.kind != WireEnd::fan_out) return {end.other};
  std::vector<int> ranks;
  for (int r = 0; r < group.layout.ranks; ++r)
    if (group.reaches(r)) ranks.push_back(r);
  return ranks;
}

// Kinds in greetings begin at `first`, another for each wire: a socket of one must not be taken for one of another.
inline Greeting greeting_of(const WireEnd& end, const WireGroup& group, uint8_t first) {
  Greeting g;
  g.topic = group.topic;
  g.kind = static_cast<uint8_t>(first + end.kind);
  g.channel = static_cast<uint16_t>(end.channel);
  g.from = group.rank;
  return g;
}

// The receiver that a writer's greeting is for; false where there can be none.
inline bool find_end(const Greeting& g, const WireGroup& group, uint8_t first, WireEnd& out) {
  const bool valid = g.purpose == Purpose::data && g.kind >= first && g.kind < first + WireEnd::kinds &&
                     g.channel < group.layout.channels && g.from >= 0 && g.from < group.layout.ranks &&
                     group.reaches(g.from);
  if (valid) out = {static_cast<WireEnd::Kind>(g.kind - first), g.channel, g.from};
  return valid;
}

}  // namespace ringcomm
