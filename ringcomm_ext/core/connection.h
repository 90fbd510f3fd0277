// The two ends of a one-way connection, as the interpreters and point-to-point see them. docs/connections.md is the contract;
// tests/native/connection_test.cpp runs it over every kind.
//
// One thread at a time per end (the holder of the lane). No call blocks. A call that cannot go on says so by nullptr and the caller
// comes back; a connection that is broken keeps its Error and says nullptr for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/status.h"

namespace ringcomm {

class Sender {
 public:
  virtual ~Sender() = default;
  // Room for one message of `bytes` <= capacity(), or nullptr: full, still connecting, or failed (see error()).
  // Asking again without publish() in between gives the same place.
  virtual char* reserve(size_t bytes) = 0;
  // Copies into the reserved place, the way that suits its memory. Writing there directly is allowed too.
  virtual void fill(char* place, const void* data, size_t bytes) { std::memcpy(place, data, bytes); }
  // Hands over the message last reserved. `tag` reaches the reader with it.
  virtual void publish(uint32_t tag) = 0;
  // Lending: instead of a copy the readers get `data` itself. can_lend: they can read it where it lies (registered memory) and it has over 56
  // bytes, or a wire takes it from there. lend: takes the place of fill() and publish() after a reserve(0) that gave room; `data` stays as it is until
  // returned().
  virtual bool can_lend(const void* /*data*/, size_t /*bytes*/) const { return false; }
  virtual void lend(const void* /*data*/, size_t /*bytes*/, uint32_t /*tag*/) {}
  // True once every reader has released and flushed everything published so far. While false, waits_for() is one that has not.
  virtual bool settled() = 0;
  // True once nothing that was lent is needed any more; settled() where readers read it in place. While false, waits_for() is who needs it.
  virtual bool returned() { return settled(); }
  // After a failure: what was lent is the caller's again, now. A wire that has not sent all of it breaks, rather than send what the caller writes there next.
  virtual void take_back() {}
  virtual size_t capacity() const = 0;
  // The rank that reserve() or settled() waits for.
  virtual int waits_for() const = 0;
  virtual const Error* error() const = 0;
};

class Receiver {
 public:
  virtual ~Receiver() = default;
  // The next message of `bytes` (both ends must agree on it), or nullptr while it is not there. Stays valid until release().
  virtual const char* peek(size_t bytes, uint32_t* tag) = 0;
  // Whether the message that peek() showed, of over 56 bytes, is lent: its bytes are as good as the writer's word, so who used them asks
  // whether the group has failed before the result counts.
  virtual bool lent() const { return false; }
  virtual void release() = 0;
  // Tells the writer what was released. Required before giving up for want of progress and at the end of a program; cheap when there is nothing new.
  virtual void flush() = 0;
  virtual size_t capacity() const = 0;
  virtual int peer() const = 0;
  virtual const Error* error() const = 0;
};

// All connections of one rank in one group. Made on first use; owned by this object.
class Connections {
 public:
  virtual ~Connections() = default;
  virtual Sender* sender(ConnectionKind kind, int channel, int peer) = 0;  // fan_out: peer is ignored
  virtual Receiver* receiver(ConnectionKind kind, int channel, int peer) = 0;
  // Point-to-point has its own, so that it never stalls a collective.
  virtual Sender* message_sender(int peer) = 0;
  virtual Receiver* message_receiver(int peer) = 0;
  virtual const char* kind() const = 0;
};

}  // namespace ringcomm
