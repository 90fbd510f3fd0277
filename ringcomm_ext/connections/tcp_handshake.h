// The bytes of the handshake (tcp_port.h draws it), without sockets.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "connections/tcp_port.h"
#include "core/hmac.h"

namespace ringcomm {

using Challenge = std::array<uint8_t, 32>;
Challenge fresh_challenge();

inline constexpr size_t kMagicBytes = 8, kGreetingBytes = 32;
using Hello = std::array<uint8_t, kMagicBytes + sizeof(Challenge)>;                                     // acceptor's
using Answer = std::array<uint8_t, kMagicBytes + kGreetingBytes + sizeof(Challenge) + sizeof(Digest)>;  // dialler's

Hello make_hello(const Challenge& acceptors);
// False: it is not ours, or of another version.
bool read_hello(const Hello& hello, Challenge& acceptors);

Answer make_answer(const std::string& key, const Challenge& acceptors, const Challenge& diallers,
                   const Greeting& greeting);
bool has_magic(const uint8_t* data, size_t bytes);  // as far as it has come
// False: the dialler does not hold the key.
bool read_answer(const std::string& key, const Challenge& acceptors, const Answer& answer, Challenge& diallers,
                 Greeting& greeting);

// The acceptor's proof, which ends the handshake.
Digest make_proof(const std::string& key, const Challenge& acceptors, const Challenge& diallers,
                  const Greeting& greeting);

}  // namespace ringcomm
