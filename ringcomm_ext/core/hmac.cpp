#include "core/hmac.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ringcomm {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}
void store(uint8_t* p, uint32_t v) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(v >> (24 - 8 * i));
}

}  // namespace

void Sha256::block(const uint8_t* data) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) w[i] = load(data + 4 * i);
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const uint32_t add[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += add[i];
}

Sha256& Sha256::add(const void* data, size_t bytes) {
  auto from = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    const size_t have = bytes_ % 64, n = std::min(bytes, 64 - have);
    std::memcpy(rest_.data() + have, from, n);
    from += n, bytes -= n, bytes_ += n;
    if (have + n == 64) block(rest_.data());
  }
  return *this;
}

// A one bit, zeros, and the length in bits at the end of a block.
Digest Sha256::end() {
  const uint64_t bits = bytes_ * 8;
  static constexpr uint8_t kPadding[64] = {0x80};
  add(kPadding, 1 + (119 - bytes_ % 64) % 64);
  uint8_t length[8];
  store(length, static_cast<uint32_t>(bits >> 32)), store(length + 4, static_cast<uint32_t>(bits));
  add(length, sizeof length);
  Digest d;
  for (int i = 0; i < 8; ++i) store(d.data() + 4 * i, state_[i]);
  return d;
}

Hmac::Hmac(const void* key, size_t bytes) {
  std::array<uint8_t, 64> padded{};
  if (bytes > padded.size()) {
    const Digest shorter = Sha256().add(key, bytes).end();
    std::copy(shorter.begin(), shorter.end(), padded.begin());
  } else if (bytes > 0) {
    std::memcpy(padded.data(), key, bytes);
  }
  for (size_t i = 0; i < padded.size(); ++i) {
    outer_key_[i] = padded[i] ^ 0x5c;
    padded[i] ^= 0x36;
  }
  inner_.add(padded.data(), padded.size());
}

Digest Hmac::end() {
  const Digest inner = inner_.end();
  return Sha256().add(outer_key_.data(), outer_key_.size()).add(inner.data(), inner.size()).end();
}

bool equal(const Digest& a, const Digest& b) {
  unsigned differ = 0;
  for (size_t i = 0; i < a.size(); ++i) differ |= a[i] ^ b[i];
  return differ == 0;
}

}  // namespace ringcomm
