// The packed program table (docs/program.md) as a kernel reads it: in place, where the host has put it after Program::load accepted it. And what follows from a chunk's
// length: both ends of a connection must come to the same.
#pragma once

#include "cuda/device_context.h"
#include "cuda/kernel_call.h"

namespace ringcomm::cuda {

RINGCOMM_DEVICE RefKind kind_of(int32_t ref) { return static_cast<RefKind>(ref >> kRefKindShift); }
RINGCOMM_DEVICE int32_t index_of(int32_t ref) { return ref & ((1 << kRefKindShift) - 1); }

class TableView {
 public:
  RINGCOMM_DEVICE explicit TableView(const int32_t* words)
      : words_(words), refs_(words + sizeof(ProgramHeader) / 4 + sizeof(PackedStep) / 4 * header().nsteps) {}

  RINGCOMM_DEVICE const ProgramHeader& header() const { return *reinterpret_cast<const ProgramHeader*>(words_); }
  RINGCOMM_DEVICE const PackedStep& step(int i) const {
    return reinterpret_cast<const PackedStep*>(words_ + sizeof(ProgramHeader) / 4)[i];
  }
  RINGCOMM_DEVICE int32_t source(const PackedStep& s, int k) const { return refs_[s.first_ref + k]; }
  RINGCOMM_DEVICE int32_t sender(const PackedStep& s, int k) const { return refs_[s.first_ref + s.nsources + k]; }

 private:
  const int32_t* words_;
  const int32_t* refs_;
};

RINGCOMM_DEVICE DeviceChunk chunk_of(const DeviceChunks& chunks, int32_t i, uint32_t element) {
  if (chunks.list != nullptr) return chunks.list[i];
  const uint64_t at = static_cast<uint64_t>(i) * chunks.part;
  if (at >= chunks.count) return {chunks.data, 0};
  return {chunks.data + at * element, chunks.count - at < chunks.part ? chunks.count - at : chunks.part};
}

// How many of a piece's bytes each block has: whole 16 bytes, the last blocks fewer or none.
RINGCOMM_DEVICE uint32_t stripe_of(uint32_t bytes, uint32_t blocks) {
  const uint32_t cells = (bytes + 15) / 16;
  return (cells + blocks - 1) / blocks * 16;
}

// As Interpreter::size_tag of core/interpreter.h.
RINGCOMM_DEVICE uint32_t size_tag(uint64_t bytes) {
  return static_cast<uint32_t>((bytes * 0x9E3779B97F4A7C15ull) >> 32);
}

}  // namespace ringcomm::cuda
