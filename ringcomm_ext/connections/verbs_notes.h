// What the two ends of a connection over verbs tell each other over the socket by which they met. docs/rdma.md draws it.
//
//   writer -> reader   offer   the writer's queue pair; message sizes, to be sure
//   reader -> writer   answer  the reader's queue pair, and where its lines are
//   writer -> reader   ask     a message needs a slot
//   reader -> writer   slots   where they are, or a refusal
//   either way         broken  what its device reports, before it closes
//
// 64 bytes each, little-endian. The socket has passed the port's handshake, so both sides hold the job's key.
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "connections/verbs_queue.h"

namespace ringcomm {

enum class NoteKind : uint32_t { offer = 1, answer = 2, ask = 3, slots = 4, refusal = 5, broken = 6 };

struct Note {
  NoteKind kind{};
  uint32_t version = 2;
  uint32_t qp = 0, psn = 0;  // broken: the completion's status, the vendor's number
  uint16_t lid = 0;
  uint8_t mtu = 0, ethernet = 0;
  uint32_t slots = 0;  // offer: how many
  uint8_t gid[16] = {};
  uint64_t memory = 0;    // answer: lines; slots: slots
  uint64_t capacity = 0;  // offer: bytes of a slot
  uint32_t rkey = 0;      // of memory
  uint32_t reserved = 0;
};
static_assert(sizeof(Note) == 64 && std::endian::native == std::endian::little);

Note note_of(NoteKind kind, const VerbsAddress& address);
VerbsAddress address_of(const Note& note);
// A failed completion: how it is told, and how it is read.
Note broken_note(int status, uint32_t vendor_error);
std::string broken_there(const Note& note);

// One socket's notes. There are never more than two under way, so the kernel always has room for one.
class Notes {
 public:
  // Null, or what went wrong.
  static const char* send(int fd, const Note& note);
  enum class Came { nothing, note, end };
  // The next one, if it is whole. At the end `why` says which.
  Came receive(int fd, Note& note, const char*& why);

 private:
  char data_[sizeof(Note)];
  size_t bytes_ = 0;
};

}  // namespace ringcomm
