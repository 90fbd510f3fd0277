#include "connections/tcp_handshake.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/random_bytes.h"

namespace ringcomm {
namespace {

constexpr uint8_t kMagic[kMagicBytes] = {'r', 'i', 'n', 'g', 't', 'c', 'p', kTcpVersion};

// Every supported processor is little-endian, so the greeting travels as it lies in memory.
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(Greeting) == kGreetingBytes && alignof(Greeting) == 4);

// `who` keeps a proof from being sent back to where it came from.
Digest sign(const std::string& key, const char* who, const Challenge& a, const Challenge& d, const Greeting& g) {
  return Hmac(key.data(), key.size())
      .add(who, std::strlen(who) + 1)
      .add(kMagic, sizeof kMagic)
      .add(a.data(), a.size())
      .add(d.data(), d.size())
      .add(&g, sizeof g)
      .end();
}

}  // namespace

Challenge fresh_challenge() { return random_bytes<sizeof(Challenge)>(); }

bool has_magic(const uint8_t* data, size_t bytes) {
  return std::memcmp(data, kMagic, std::min(bytes, sizeof kMagic)) == 0;
}

Hello make_hello(const Challenge& acceptors) {
  Hello h;
  std::memcpy(h.data(), kMagic, sizeof kMagic);
  std::memcpy(h.data() + kMagicBytes, acceptors.data(), acceptors.size());
  return h;
}

bool read_hello(const Hello& hello, Challenge& acceptors) {
  std::memcpy(acceptors.data(), hello.data() + kMagicBytes, acceptors.size());
  return has_magic(hello.data(), hello.size());
}

Answer make_answer(const std::string& key, const Challenge& acceptors, const Challenge& diallers,
                   const Greeting& greeting) {
  Answer a;
  uint8_t* to = a.data();
  const auto put = [&to](const void* data, size_t bytes) {
    std::memcpy(to, data, bytes);
    to += bytes;
  };
  const Digest proof = sign(key, "dial", acceptors, diallers, greeting);
  put(kMagic, sizeof kMagic);
  put(&greeting, sizeof greeting);
  put(diallers.data(), diallers.size());
  put(proof.data(), proof.size());
  return a;
}

bool read_answer(const std::string& key, const Challenge& acceptors, const Answer& answer, Challenge& diallers,
                 Greeting& greeting) {
  if (!has_magic(answer.data(), answer.size())) return false;
  const uint8_t* from = answer.data() + kMagicBytes;
  const auto get = [&from](void* data, size_t bytes) {
    std::memcpy(data, from, bytes);
    from += bytes;
  };
  Digest proof;
  get(&greeting, sizeof greeting);
  get(diallers.data(), diallers.size());
  get(proof.data(), proof.size());
  return equal(proof, sign(key, "dial", acceptors, diallers, greeting));
}

Digest make_proof(const std::string& key, const Challenge& acceptors, const Challenge& diallers,
                  const Greeting& greeting) {
  return sign(key, "accept", acceptors, diallers, greeting);
}

}  // namespace ringcomm
