// Bytes nobody can guess, from the kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ringcomm {

void fill_random(uint8_t* to, size_t bytes);

template <size_t N>
std::array<uint8_t, N> random_bytes() {
  std::array<uint8_t, N> all;
  fill_random(all.data(), N);
  return all;
}

}  // namespace ringcomm
