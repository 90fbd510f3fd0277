#include "core/interpreter.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/copy.h"

namespace ringcomm {
namespace {

// A reduction never stores into a slot: it reduces a block into private lines and copies the finished block, which is worth up to 2x where the
// reader's core owns the slot's lines (a plain vector store first fetches each line; a block copy need not). 16-64 KiB measure alike.
constexpr size_t kBlock = 32 << 10;
alignas(64) thread_local char scratch[kBlock];

size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

}  // namespace

Interpreter::Interpreter(Run run) : run_(std::move(run)) {
  size_t longest = 0;
  for (const Step& s : run_.program->steps) longest = std::max(longest, ceil_div(chunk(s.chunk).count, run_.piece));
  if (run_.sized_tags && !run_.program->steps.empty()) longest = std::max<size_t>(longest, 1);
  loops_ = longest == 0 ? 0 : longest + run_.program->max_lag;
  source_.resize(run_.program->most_sources);
  place_.resize(run_.program->most_senders);
  in_place_ = shares_memory();
}

// Given up: the caller gets its memory back without waiting for the readers.
Interpreter::~Interpreter() {
  if (!owes_) return;
  for (Sender* to : lenders_) to->take_back();
}

bool Interpreter::shares_memory() const {
  for (size_t i = 0; i < run_.in.size(); ++i) {
    const int out = run_.program->shared_out(static_cast<int>(i));
    if (out >= 0 && run_.in[i].count > 0 && run_.in[i].data == run_.out[out].data) return true;
  }
  return false;
}

bool Interpreter::piece_of(const Step& s, Piece& p) const {
  if (loop_ < static_cast<size_t>(s.lag)) return false;
  p.offset = (loop_ - s.lag) * run_.piece;
  const size_t count = chunk(s.chunk).count;
  const bool shows_size = run_.sized_tags && count == 0 && p.offset == 0;
  if (p.offset >= count && !shows_size) return false;
  p.count = std::min(run_.piece, count - p.offset);
  return true;
}

uint32_t Interpreter::tag_for(const Step& s) const {
  if (!run_.sized_tags) return run_.tag;
  return run_.tag ^ size_tag(chunk(s.chunk).count * run_.element);
}

Interpreter::Ready Interpreter::source_ready(const Step& s, size_t bytes) {
  const Ref& ref = run_.program->sources(s)[have_sources_];
  Receiver& from = *run_.receivers[ref.index];
  uint32_t tag;
  const char* data = from.peek(bytes, &tag);
  if (data == nullptr) {
    waits_for_ = from.peer();
    to_send_ = false;
    error_ = from.error();
    return error_ ? Ready::failed : Ready::no;
  }
  if (tag != tag_for(s)) {
    waits_for_ = from.peer();
    foreign_tag_ = tag;
    return Ready::failed;
  }
  source_[have_sources_++] = data;
  return Ready::yes;
}

// The memory that the readers of this step may be shown, or nullptr: it must be copied.
const char* Interpreter::lendable(const Step& s, const Piece& p) const {
  if (s.lend == Lend::never || (s.lend == Lend::apart && in_place_) || p.count * run_.element < run_.lend_from)
    return nullptr;
  return at(run_.program->lent(s), p);
}

Interpreter::Ready Interpreter::sender_ready(const Step& s, const Piece& p) {
  Sender& to = sender(s, have_senders_);
  const size_t bytes = p.count * run_.element;
  const char* data = lendable(s, p);
  const bool lends = data != nullptr && to.can_lend(data, bytes);
  char* place = to.reserve(lends ? 0 : bytes);
  if (place == nullptr) {
    waits_for_ = to.waits_for();
    to_send_ = true;
    error_ = to.error();
    return error_ ? Ready::failed : Ready::no;
  }
  place_[have_senders_++] = lends ? nullptr : place;
  return Ready::yes;
}

// Everything the step names, in order; what is already there is not asked again on the next call.
Interpreter::Ready Interpreter::ready(const Step& s, const Piece& p) {
  const size_t bytes = p.count * run_.element;
  while (have_sources_ < s.nsources) {
    const Ref& ref = run_.program->sources(s)[have_sources_];
    if (ref.kind != RefKind::receiver) {
      source_[have_sources_++] = at(ref, p);
      continue;
    }
    const Ready r = source_ready(s, bytes);
    if (r != Ready::yes) return r;
  }
  while (have_senders_ < s.nsenders) {
    const Ready r = sender_ready(s, p);
    if (r != Ready::yes) return r;
  }
  return Ready::yes;
}

void Interpreter::reduce_step(const Step& s, const Piece& p) {
  const ReduceFn fn = s.finish ? run_.finish : run_.reduce;
  char* const dst = s.dst.none() ? nullptr : at(s.dst, p);
  const bool copies = std::any_of(place_.begin(), place_.begin() + s.nsenders, [](const char* p) { return p; });
  if (!copies) {
    fn(dst, source_.data(), s.nsources, p.count, run_.program->nranks);
    return;
  }
  const size_t block = kBlock / run_.element;
  for (size_t done = 0; done < p.count; done += block) {
    const size_t n = std::min(block, p.count - done);
    char* const target = dst ? dst + done * run_.element : scratch;
    fn(target, source_.data(), s.nsources, n, run_.program->nranks);
    for (int k = 0; k < s.nsenders; ++k)
      if (place_[k]) sender(s, k).fill(place_[k] + done * run_.element, target, n * run_.element);
    for (int k = 0; k < s.nsources; ++k) source_[k] = static_cast<const char*>(source_[k]) + n * run_.element;
  }
}

// IN and OUT may be one memory (then there is nothing to do) or lie apart; memmove is for the unforeseen.
void Interpreter::copy_local(char* dst, const char* src, size_t bytes) const {
  if (dst == src) return;
  const bool apart = dst + bytes <= src || src + bytes <= dst;
  if (run_.stream_out && apart)
    copy_streaming(dst, src, bytes);
  else
    std::memmove(dst, src, bytes);
}

void Interpreter::act(const Step& s, const Piece& p) {
  const size_t bytes = p.count * run_.element;
  switch (p.count == 0 ? Opcode::skip : s.opcode) {  // an empty piece has nothing to move: its slot shows its size
    case Opcode::copy:
      copy_local(at(s.dst, p), static_cast<const char*>(source_[0]), bytes);
      break;
    case Opcode::receive:
      (run_.stream_out ? copy_streaming : copy_cached)(at(s.dst, p), source_[0], bytes);
      break;
    case Opcode::forward:
      if (!s.dst.none()) {  // the slot is the peer's memory: read it once
        char* dst = at(s.dst, p);
        copy_cached(dst, source_[0], bytes);
        source_[0] = dst;
      }
      [[fallthrough]];
    case Opcode::send:
      for (int k = 0; k < s.nsenders; ++k)
        if (place_[k]) sender(s, k).fill(place_[k], source_[0], bytes);
      break;
    case Opcode::reduce:
    case Opcode::reduce_send:
      reduce_step(s, p);
      break;
    case Opcode::skip:
      break;
  }
  put(s, p);
  take(s, bytes);
}

void Interpreter::put(const Step& s, const Piece& p) {
  const uint32_t tag = tag_for(s);
  for (int k = 0; k < s.nsenders; ++k) {
    if (place_[k]) {
      sender(s, k).publish(tag);
    } else {
      sender(s, k).lend(lendable(s, p), p.count * run_.element, tag);
      if (!lent_) lenders_.assign(run_.senders, run_.senders + run_.program->senders.size());
      lent_ = owes_ = true;
    }
  }
}

void Interpreter::take(const Step& s, size_t bytes) {
  for (int k = 0; k < s.nsources; ++k)
    if (const Ref& r = run_.program->sources(s)[k]; r.kind == RefKind::receiver) {
      Receiver& from = *run_.receivers[r.index];
      if (bytes > kInlineBytes && s.opcode != Opcode::skip) borrowed_ |= from.lent();
      from.release();
      if (bytes > kInlineBytes) from.flush();  // a slot's room is worth a store at once; a line's can wait for the end
    }
}

// What was lent is the caller's again by then, and who asked to be the last to end is.
Interpreter::Ready Interpreter::settled() {
  for (; settled_ < run_.program->senders.size(); ++settled_) {
    Sender& to = *run_.senders[settled_];
    if (run_.program->drain ? to.settled() : to.returned()) continue;
    waits_for_ = to.waits_for();
    to_send_ = true;
    error_ = to.error();
    return error_ ? Ready::failed : Ready::no;
  }
  return Ready::yes;
}

void Interpreter::flush() {
  for (size_t i = 0; i < run_.program->receivers.size(); ++i) run_.receivers[i]->flush();
}

Progress Interpreter::advance() {
  bool moved = false;
  const int nsteps = static_cast<int>(run_.program->steps.size());
  for (; loop_ < loops_; ++loop_, pc_ = 0) {
    for (; pc_ < nsteps; ++pc_) {
      const Step& s = run_.program->steps[pc_];
      Piece p;
      if (!piece_of(s, p)) continue;
      const Ready r = ready(s, p);
      if (r != Ready::yes) {
        flush();
        return r == Ready::failed ? Progress::failed : moved ? Progress::moved : Progress::blocked;
      }
      act(s, p);
      have_sources_ = have_senders_ = 0;
      moved = true;
    }
  }
  flush();
  if (!lent_ && !(run_.program->drain && loops_ > 0)) return Progress::done;
  pc_ = nsteps - 1;
  switch (settled()) {
    case Ready::yes:
      owes_ = false;
      return Progress::done;
    case Ready::no:
      return moved ? Progress::moved : Progress::blocked;
    default:
      return Progress::failed;
  }
}

}  // namespace ringcomm
