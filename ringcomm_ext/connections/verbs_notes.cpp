#include "connections/verbs_notes.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace ringcomm {

Note note_of(NoteKind kind, const VerbsAddress& a) {
  Note note;
  note.kind = kind;
  note.qp = a.qp, note.psn = a.psn, note.lid = a.lid, note.mtu = a.mtu, note.ethernet = a.ethernet;
  std::memcpy(note.gid, a.gid.raw, sizeof note.gid);
  return note;
}

VerbsAddress address_of(const Note& note) {
  VerbsAddress a;
  a.qp = note.qp, a.psn = note.psn, a.lid = note.lid, a.mtu = note.mtu, a.ethernet = note.ethernet;
  std::memcpy(a.gid.raw, note.gid, sizeof note.gid);
  return a;
}

Note broken_note(int status, uint32_t vendor_error) {
  Note note;
  note.kind = NoteKind::broken;
  note.qp = static_cast<uint32_t>(status), note.psn = vendor_error;
  return note;
}

std::string broken_there(const Note& note) {
  return "its device reports " + completion_text(static_cast<int>(note.qp), note.psn);
}

const char* Notes::send(int fd, const Note& note) {
  while (true) {
    const ssize_t n = ::send(fd, &note, sizeof note, MSG_NOSIGNAL);
    if (n == static_cast<ssize_t>(sizeof note)) return nullptr;
    if (n >= 0) return "the socket has no room for a note";
    if (errno != EINTR) return std::strerror(errno);
  }
}

Notes::Came Notes::receive(int fd, Note& note, const char*& why) {
  while (bytes_ < sizeof data_) {
    const ssize_t n = recv(fd, data_ + bytes_, sizeof data_ - bytes_, 0);
    if (n > 0) {
      bytes_ += static_cast<size_t>(n);
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Came::nothing;
    } else {
      why = n == 0 ? "closed by the other side" : std::strerror(errno);
      return Came::end;
    }
  }
  bytes_ = 0;
  std::memcpy(&note, data_, sizeof note);
  return Came::note;
}

}  // namespace ringcomm
