// Cells: 4, 8 or 16 bytes of elements in registers, from plain memory of any alignment or from low latency slots, and back.
//
// Low latency (LL). A slot holds 8-byte words of 4 bytes data and a 4-byte flag. A 64-bit store is seen whole, so a reader that finds the flag of the message it
// waits for has the data too: no fence, no second trip for a head. The flag follows the position, and what a slot held before carried another flag. Half the bytes on the
// wire are flags, so it pays for small messages only. A block's stripe starts with one word for the tag.
#pragma once

#include <cstddef>

#include "cuda/device_context.h"

namespace ringcomm::cuda {

inline constexpr uint32_t kLowLatencyHeader = 16;  // the tag's word, and padding

template <uint32_t kBytes>
struct alignas(kBytes) Cell {
  static constexpr uint32_t kWords = kBytes / 4;
  uint32_t word[kWords];
};

// Bits of one type as another of the same size.
template <class To, class From>
RINGCOMM_DEVICE To bits_as(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

RINGCOMM_DEVICE bool aligned(const void* p, uintptr_t to) { return (reinterpret_cast<uintptr_t>(p) & (to - 1)) == 0; }

// The first `bytes` (1 to all) of a cell, the rest is 0; any alignment. Calls: inlined where cells are read they were most of the kernels, and most of nvcc's time.
template <uint32_t kBytes>
RINGCOMM_DEVICE_CALL Cell<kBytes> load_part(const char* from, uint32_t bytes) {
  Cell<kBytes> cell = {};
#if defined(__CUDA_ARCH__)
  if (bytes == kBytes && aligned(from, 4)) {
    RINGCOMM_UNROLL
    for (uint32_t w = 0; w < kBytes / 4; ++w) cell.word[w] = reinterpret_cast<const uint32_t*>(from)[w];
    return cell;
  }
  RINGCOMM_UNROLL
  for (uint32_t i = 0; i < kBytes; ++i)
    if (i < bytes) cell.word[i / 4] |= static_cast<uint32_t>(static_cast<unsigned char>(from[i])) << (8 * (i % 4));
#else
  __builtin_memcpy(&cell, from, bytes);
#endif
  return cell;
}

template <uint32_t kBytes>
RINGCOMM_DEVICE_CALL void store_part(char* to, const Cell<kBytes> cell, uint32_t bytes) {
#if defined(__CUDA_ARCH__)
  if (bytes == kBytes && aligned(to, 4)) {
    RINGCOMM_UNROLL
    for (uint32_t w = 0; w < kBytes / 4; ++w) reinterpret_cast<uint32_t*>(to)[w] = cell.word[w];
    return;
  }
  RINGCOMM_UNROLL
  for (uint32_t i = 0; i < kBytes; ++i)
    if (i < bytes) to[i] = static_cast<char>(cell.word[i / 4] >> (8 * (i % 4)));
#else
  __builtin_memcpy(to, &cell, bytes);
#endif
}

// Whole cells where they should be are one access.
template <uint32_t kBytes>
RINGCOMM_DEVICE Cell<kBytes> load_cell(const char* from, uint32_t bytes) {
#if defined(__CUDA_ARCH__)
  if (bytes == kBytes && aligned(from, kBytes)) return *reinterpret_cast<const Cell<kBytes>*>(from);
#endif
  return load_part<kBytes>(from, bytes);
}

template <uint32_t kBytes>
RINGCOMM_DEVICE void store_cell(char* to, const Cell<kBytes>& cell, uint32_t bytes) {
#if defined(__CUDA_ARCH__)
  if (bytes == kBytes && aligned(to, kBytes)) {
    *reinterpret_cast<Cell<kBytes>*>(to) = cell;
    return;
  }
#endif
  store_part(to, cell, bytes);
}

// The flag of message `position`: never 0, which stands for plain memory, and another one than any message of the 2^31 before had.
RINGCOMM_DEVICE uint32_t low_latency_flag(uint32_t position) { return (position + 1) | 0x80000000u; }

RINGCOMM_DEVICE uint64_t flagged(uint32_t data, uint32_t flag) { return static_cast<uint64_t>(flag) << 32 | data; }

// Where the words of the cell at byte `at` of the data are, in a stripe.
RINGCOMM_DEVICE uint32_t low_latency_at(uint32_t at) { return kLowLatencyHeader + 2 * at; }

// Whole words only: the last may be padded, its slot has room for it.
template <uint32_t kBytes>
RINGCOMM_DEVICE void store_flagged(char* stripe, uint32_t at, const Cell<kBytes>& cell, uint32_t bytes, uint32_t flag) {
  uint64_t* to = reinterpret_cast<uint64_t*>(stripe + low_latency_at(at));
  RINGCOMM_UNROLL
  for (uint32_t w = 0; w < kBytes / 4; ++w) {
    if (4 * w < bytes) st_relaxed_sys(to + w, flagged(cell.word[w], flag));
  }
}

// Looks once; false: not all of it is there.
template <uint32_t kBytes>
RINGCOMM_DEVICE bool look_flagged(const char* stripe, uint32_t at, uint32_t bytes, uint32_t flag, Cell<kBytes>& cell) {
  const uint64_t* from = reinterpret_cast<const uint64_t*>(stripe + low_latency_at(at));
  bool all = true;
  RINGCOMM_UNROLL
  for (uint32_t w = 0; w < kBytes / 4; ++w) {
    if (4 * w >= bytes) continue;
    const uint64_t word = ld_relaxed_sys(from + w);
    cell.word[w] = static_cast<uint32_t>(word);
    all &= static_cast<uint32_t>(word >> 32) == flag;
  }
  return all;
}

}  // namespace ringcomm::cuda
