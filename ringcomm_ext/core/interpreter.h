// The host interpreter: runs one program over one message. It is resumable: advance() does what can be done now and never waits.
// It knows no transport kind, no threads and no groups.
//
// Lending. Where a step's memory is registered and the program says that nothing is written there before its readers have read it, the readers get
// the memory itself instead of a slot. Then, and where the program asks for it, the run ends only when they have released everything: what was lent is
// the caller's again.
#pragma once

#include <vector>

#include "core/connection.h"
#include "core/program.h"
#include "core/reduce.h"

namespace ringcomm {

struct Chunk {
  char* data = nullptr;
  size_t count = 0;  // elements
};

// What one run needs besides the program.
struct Run {
  const Program* program = nullptr;
  std::vector<Chunk> in, out;            // as docs/program.md lays them out
  Sender* const* senders = nullptr;      // in the order of program->senders
  Receiver* const* receivers = nullptr;  // in the order of program->receivers
  DType dtype = DType::other;
  size_t element = 1;         // bytes
  size_t piece = 0;           // elements per piece
  ReduceFn reduce = nullptr;  // for steps before the last contribution
  ReduceFn finish = nullptr;  // for finishing steps (divides for avg)
  uint32_t tag = 0;           // of every slot of this call
  // Uneven calls: the pair's own size goes into its tag, and an empty chunk moves one empty slot, so that both ends of every pair see it.
  bool sized_tags = false;
  bool stream_out =
      false;  // copies from a slot to OUT bypass the caches (large messages that nothing reads again soon)
  // A piece of so many bytes is lent where it may be. measured (prototypes): at 4 KiB the wait for the readers at the end costs what the copy
  // saved, at 64 KiB lending is far ahead; between, guessed.
  size_t lend_from = 8 << 10;
};

enum class Progress { done, moved, blocked, failed };

class Interpreter {
 public:
  explicit Interpreter(Run run);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Runs until the program ends or a step cannot go on. `moved`: some step acted in this call, then one blocked.
  Progress advance();
  // What an uneven call adds to a tag: the size of the pair's chunk, so that both ends must agree on it.
  static uint32_t size_tag(uint64_t bytes) { return static_cast<uint32_t>((bytes * 0x9E3779B97F4A7C15ull) >> 32); }

  // After blocked or failed: where it stands.
  int step() const { return pc_; }
  int waits_for() const { return waits_for_; }  // rank
  bool waits_to_send() const { return to_send_; }
  // After failed: the peer whose slot carried another call's tag, and that tag; or the connection's own error.
  uint32_t foreign_tag() const { return foreign_tag_; }
  // Whether readers were lent memory, and whether this rank used memory that was lent to it.
  bool lent() const { return lent_; }
  bool borrowed() const { return borrowed_; }
  uint64_t expected_bytes() const {
    return chunk(run_.program->steps[pc_].chunk).count * run_.element;
  }  // of the whole chunk
  const Error* error() const { return error_; }

 private:
  struct Piece {
    size_t offset, count;  // elements
  };
  enum class Ready { yes, no, failed };

  const Chunk& chunk(const Ref& r) const { return r.kind == RefKind::in ? run_.in[r.index] : run_.out[r.index]; }
  char* at(const Ref& r, const Piece& p) const { return chunk(r).data + p.offset * run_.element; }
  Sender& sender(const Step& s, int k) const { return *run_.senders[run_.program->step_senders(s)[k].index]; }
  bool shares_memory() const;
  bool piece_of(const Step& s, Piece& p) const;
  const char* lendable(const Step& s, const Piece& p) const;
  uint32_t tag_for(const Step& s) const;
  Ready ready(const Step& s, const Piece& p);
  Ready source_ready(const Step& s, size_t bytes);
  Ready sender_ready(const Step& s, const Piece& p);
  void copy_local(char* dst, const char* src, size_t bytes) const;
  void act(const Step& s, const Piece& p);
  void reduce_step(const Step& s, const Piece& p);
  void put(const Step& s, const Piece& p);
  void take(const Step& s, size_t bytes);
  Ready settled();
  void flush();

  Run run_;
  int pc_ = 0;
  size_t loop_ = 0, loops_ = 0;
  int have_sources_ = 0, have_senders_ = 0;  // of the step at pc_
  std::vector<const void*> source_;
  std::vector<char*> place_;  // by sender of the step: where to write, or nullptr: the step lends
  bool in_place_ = false;     // some IN chunk is the memory of an OUT chunk
  bool lent_ = false, borrowed_ = false;
  bool owes_ = false;             // something lent may still be needed
  std::vector<Sender*> lenders_;  // once it has lent: all of its, for run_.senders may be gone at the end
  size_t settled_ = 0;            // senders whose readers are known to be through
  int waits_for_ = -1;
  bool to_send_ = false;
  uint32_t foreign_tag_ = 0;
  const Error* error_ = nullptr;
};

}  // namespace ringcomm
