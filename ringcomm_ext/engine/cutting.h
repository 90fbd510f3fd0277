// How one message is cut into the chunks of a program, and chunks into channels. The same for every data plane: ranks, and the host and a device of one rank, must cut alike.
#pragma once

#include <algorithm>
#include <vector>

#include "core/interpreter.h"

namespace ringcomm {

inline constexpr size_t kChunkAlign = 64;  // chunks start on cache lines

inline size_t part_size(size_t count, size_t parts, size_t element) {
  const size_t unit = std::max<size_t>(1, kChunkAlign / element);
  return ((count + parts - 1) / parts + unit - 1) / unit * unit;
}

inline Chunk part(const Chunk& whole, size_t parts, size_t i, size_t element) {
  const size_t size = part_size(whole.count, parts, element);
  const size_t first = std::min(i * size, whole.count);
  return {whole.data + first * element, std::min(size, whole.count - first)};
}

// Of a call whose buffers are one Chunk each.
inline std::vector<Chunk> cut(const std::vector<Chunk>& whole, int parts, size_t element) {
  std::vector<Chunk> chunks;
  for (int i = 0; i < parts && !whole.empty(); ++i)
    chunks.push_back(part(whole[0], static_cast<size_t>(parts), static_cast<size_t>(i), element));
  return chunks;
}

// Collectives whose callers give one message; the others give the program's chunks.
inline bool is_cut(Collective c) {
  return c == Collective::all_reduce || c == Collective::broadcast || c == Collective::reduce ||
         c == Collective::barrier;
}

}  // namespace ringcomm
