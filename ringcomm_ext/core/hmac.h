// SHA-256 (RFC 6234) and HMAC over it (RFC 2104). For handshakes: a few hundred bytes each, so simple rather than fast. No library brings them that
// may be linked everywhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ringcomm {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256& add(const void* data, size_t bytes);
  Digest end();

 private:
  void block(const uint8_t* data);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> rest_{};
  uint64_t bytes_ = 0;
};

class Hmac {
 public:
  Hmac(const void* key, size_t bytes);
  Hmac& add(const void* data, size_t bytes) {
    inner_.add(data, bytes);
    return *this;
  }
  Digest end();

 private:
  std::array<uint8_t, 64> outer_key_{};
  Sha256 inner_;
};

// In a time that does not depend on where they differ.
bool equal(const Digest& a, const Digest& b);

}  // namespace ringcomm
