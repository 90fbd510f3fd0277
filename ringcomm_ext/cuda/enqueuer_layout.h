// Where slots and flags of `memop` mode lie (enqueuer.h). Addresses only.
//
// Every rank has two segments, laid out alike, all 0 at first: data, of the device, and flags, of the host, registered with every rank's device, so that the host can end
// a wait by storing.
//
//   data    pair: slots from each writer | fan-out: this rank's own slots
//   flags   full [kind][writer][slot]     of what this rank reads
//           room [kind][reader][slot]     of what this rank writes
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/types.h"

namespace ringcomm::cuda {

struct EnqueuerShape {
  int ranks = 2;
  int slots = 4;                 // no fewer than any program was verified for
  size_t pair = 0, fan_out = 0;  // bytes of a slot; 0: no program has such connections
};

// The addresses of one rank's segments for the device of this one.
struct RankSegments {
  char* data = nullptr;
  char* flags = nullptr;
};

class EnqueuerLayout {
 public:
  explicit EnqueuerLayout(const EnqueuerShape& shape)
      : shape_(shape), peers_(static_cast<size_t>(shape.ranks > 1 ? shape.ranks - 1 : 0)) {}
  const EnqueuerShape& shape() const { return shape_; }

  size_t data_bytes() const {
    return fan_out_at() + static_cast<size_t>(shape_.slots) * stride(ConnectionKind::fan_out);
  }
  size_t flag_bytes() const { return 4 * peers_ * static_cast<size_t>(shape_.slots) * kFlagStride; }
  size_t slot_bytes(ConnectionKind kind) const { return kind == ConnectionKind::pair ? shape_.pair : shape_.fan_out; }

  // Offset in the data segment of the reader (pair) or the writer (fan-out).
  size_t slot(ConnectionKind kind, int writer, int reader, int slot) const {
    const size_t s = static_cast<size_t>(slot);
    if (kind == ConnectionKind::fan_out) return fan_out_at() + s * stride(kind);
    return (index(writer, reader) * static_cast<size_t>(shape_.slots) + s) * stride(kind);
  }
  // Offsets in the flag segments of the reader and of the writer.
  size_t full(ConnectionKind kind, int writer, int reader, int slot) const {
    return flag(static_cast<size_t>(kind), index(writer, reader), slot);
  }
  size_t room(ConnectionKind kind, int writer, int reader, int slot) const {
    return flag(2 + static_cast<size_t>(kind), index(reader, writer), slot);
  }

 private:
  static constexpr size_t kFlagStride = 64;  // guessed: writes of several devices do not share a line
  static constexpr size_t kAlign = 256;

  static size_t index(int of, int at) { return static_cast<size_t>(of < at ? of : of - 1); }
  size_t stride(ConnectionKind kind) const { return (slot_bytes(kind) + kAlign - 1) / kAlign * kAlign; }
  size_t fan_out_at() const { return peers_ * static_cast<size_t>(shape_.slots) * stride(ConnectionKind::pair); }
  size_t flag(size_t which, size_t peer, int slot) const {
    return ((which * peers_ + peer) * static_cast<size_t>(shape_.slots) + static_cast<size_t>(slot)) * kFlagStride;
  }

  const EnqueuerShape shape_;
  const size_t peers_;
};

}  // namespace ringcomm::cuda
