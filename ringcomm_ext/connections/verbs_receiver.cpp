#include "connections/verbs_receiver.h"

#include <endian.h>

#include <cstring>
#include <utility>

namespace ringcomm {
namespace {

constexpr int kAtOnce = 16;  // completions

}  // namespace

VerbsReceiver::VerbsReceiver(std::shared_ptr<VerbsShared> shared, LateCounts& late, size_t capacity, int channel,
                             int peer)
    : shared_(std::move(shared)),
      late_(late),
      device_(shared_->net.device(channel)),
      capacity_(capacity),
      slots_(shared_->group.layout.slots),
      window_(verbs_window(slots_)),
      other_(*shared_, device_, "from", peer),
      lengths_(window_) {}

VerbsReceiver::~VerbsReceiver() {
  other_.stop_listening();
  queue_.reset();
}

// --------------------------------------------------------------------------------------------------------------- meeting

bool VerbsReceiver::attach(int fd) {
  if (other_.met()) return false;
  other_.meet(fd);
  other_.listen([this] { on_note(); });
  return true;
}

void VerbsReceiver::on_note() {
  Note note;
  const char* why = nullptr;
  while (true) {
    switch (other_.hear(note, why)) {
      case Notes::Came::nothing:
        return;
      case Notes::Came::end:
        closed_.store(true, std::memory_order_seq_cst);  // what came before counts: peek() looks once more
        return shared_->own.ring();
      case Notes::Came::note:
        break;
    }
    if (heed(note)) continue;
    other_.hang_up();  // the writer must not wait for what will not come
    return;
  }
}

bool VerbsReceiver::heed(const Note& note) {
  Error error;
  if (note.kind == NoteKind::offer && !queue_) {
    if (!meet(note, error)) return other_.fail(error), false;
    Note answer = note_of(NoteKind::answer, queue_->address());
    answer.memory = reinterpret_cast<uintptr_t>(lines_.data()), answer.rkey = lines_.rkey();
    ready_.store(true, std::memory_order_seq_cst);
    shared_->own.ring();  // whoever sleeps must arm
    if (const char* what = other_.tell(answer)) return other_.fail(what), false;
    return true;
  }
  if (note.kind == NoteKind::ask && queue_ && !has_slots_.load()) return give_slots();
  if (note.kind == NoteKind::broken) return other_.fail(broken_there(note).c_str()), false;
  return other_.fail("it said what makes no sense"), false;
}

bool VerbsReceiver::meet(const Note& offer, Error& error) {
  if (offer.version != Note{}.version || offer.slots != slots_ || offer.capacity != capacity_) {
    error = other_.reason("it has slots of other sizes, or another version");
    return false;
  }
  if (!lines_.take(device_, window_ * sizeof(VerbsLine), ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite, nullptr,
                   "the lines of a connection over verbs", error))
    return false;
  // Counts: never more at once than messages of a window, and each asks for a completion.
  queue_ = VerbsQueue::open(device_, {window_, window_, 0}, shared_->net.traits(), error);
  if (!queue_ || !queue_->connect(address_of(offer), error)) return false;
  if (queue_->watch([this] { shared_->own.ring(); })) return true;
  error = other_.reason("its completions cannot be watched");
  return false;
}

bool VerbsReceiver::give_slots() {
  Note note;
  Error error;
  const bool taken =
      payloads_.take(device_, slots_ * verbs_stride(capacity_), ibv::kAccessLocalWrite | ibv::kAccessRemoteWrite,
                     &shared_->budget, "the slots of a connection over verbs", error);
  note.kind = taken ? NoteKind::slots : NoteKind::refusal;
  if (taken) {
    note.memory = reinterpret_cast<uintptr_t>(payloads_.data()), note.rkey = payloads_.rkey();
    has_slots_.store(true, std::memory_order_release);
  }
  const char* what = other_.tell(note);
  if (!taken) return other_.fail(error), true;  // the writer has been told, and may say why it goes
  if (what) return other_.fail(what), false;
  return true;
}

// --------------------------------------------------------------------------------------------------------------- reading

const char* VerbsReceiver::peek(size_t, uint32_t* tag) {
  if (!shown_) {
    if (error_ || !arrived()) return failed(), nullptr;  // what had come before it broke still counts
    shown_ = true;
  }
  *tag = tag_;
  return payload();
}

// Where the next message's is.
const char* VerbsReceiver::payload() const {
  const uint64_t place = released_ % window_;
  if ((lengths_[place] & ~kAskForCount) <= kInlineBytes)
    return reinterpret_cast<const VerbsLine*>(lines_.data())[place].payload;
  return payloads_.data() + payloads_released_ % slots_ * verbs_stride(capacity_);
}

// True once the next message is there, and what it says of itself makes sense.
bool VerbsReceiver::arrived() {
  if (!ready_.load(std::memory_order_seq_cst)) {
    if (closed_.load()) other_.fail("closed by the other side", true);
    return false;
  }
  if (arrived_.load(std::memory_order_acquire) == released_) {
    const bool closed = closed_.load(std::memory_order_seq_cst);
    const bool looked = poll();
    // Arm-then-poll: what came before the arming wakes nobody.
    if (arrived_.load(std::memory_order_acquire) == released_ &&
        shared_->own.sleeping.load(std::memory_order_seq_cst) != 0) {
      queue_->arm();
      poll();
    }
    if (arrived_.load(std::memory_order_acquire) == released_) {
      if (closed && looked) other_.fail("closed by the other side", true);
      return false;
    }
  }
  return makes_sense();
}

bool VerbsReceiver::makes_sense() {
  const uint32_t length = lengths_[released_ % window_] & ~kAskForCount;
  const bool small = length <= kInlineBytes;
  if (!small && (length > capacity_ || !has_slots_.load(std::memory_order_acquire)))
    return other_.fail("it sent what is no message"), false;
  uint32_t head[2];  // position, tag
  static_assert(sizeof head == kLineHead);
  std::memcpy(head, small ? payload() - kLineHead : payload() + length, kLineHead);
  if (head[0] != static_cast<uint32_t>(released_ + 1))
    return other_.fail("the head of a message is not where it should be"), false;
  tag_ = head[1];
  return true;
}

void VerbsReceiver::release() {
  const uint32_t length = lengths_[released_ % window_];
  const bool small = (length & ~kAskForCount) <= kInlineBytes;
  must_tell_ |= !small || (length & kAskForCount) != 0;
  if (!small) ++payloads_released_;
  ++released_;
  shown_ = false;
}

// Whether it was its turn.
bool VerbsReceiver::poll() {
  const Turn turn(polling_);
  if (turn) poll_in_turn();
  return static_cast<bool>(turn);
}

void VerbsReceiver::poll_in_turn() {
  FirstFailure failure;
  ibv::Wc completions[kAtOnce];
  uint64_t arrived = arrived_.load(std::memory_order_relaxed), counts = counts_through_.load(std::memory_order_relaxed);
  uint32_t lines = 0;
  int n;
  do {
    n = queue_->poll(completions, kAtOnce);
    for (int i = 0; i < n; ++i) {
      const ibv::Wc& wc = completions[i];
      if (wc.status != ibv::kWcSuccess) {
        failure.add(wc);
      } else if (wc.opcode & ibv::kWcRecv) {
        lengths_[arrived++ % window_] = be32toh(wc.imm_data);
        ++lines;
      } else {
        ++counts;
      }
    }
  } while (n == kAtOnce);
  // Before a count of these messages can go: for each that the writer may then send there is a receive.
  int refused = 0;
  if (lines > 0 && !failure && !other_.broken()) refused = queue_->post_receives(lines);
  counts_through_.store(counts, std::memory_order_release);
  arrived_.store(arrived, std::memory_order_release);
  if (n < 0) return other_.fail("its completion queue failed");
  if (failure) return other_.fail(failure);
  if (refused != 0) other_.fail(std::strerror(refused));
}

// ---------------------------------------------------------------------------------------------------------------- counts

void VerbsReceiver::flush() {
  if (released_ == flushed_.load(std::memory_order_relaxed)) return;
  flushed_.store(released_, std::memory_order_seq_cst);
  if (!must_tell_ && released_ - counted_.load(std::memory_order_relaxed) < window_ / 2) return late_.note();
  must_tell_ = false;
  send_count();
  late_
      .note();  // there may have been no room for it; and whether it came through is to be seen, though nobody peeks here again
}

bool VerbsReceiver::count_late() {
  const uint64_t flushed = flushed_.load(std::memory_order_seq_cst);
  const bool all =
      counted_.load(std::memory_order_seq_cst) == flushed && counts_through_.load() == counts_posted_.load();
  if (all || other_.broken() || !ready_.load()) return false;
  const bool done = flushed == seen_late_ && over();
  seen_late_ = flushed;
  return !done;
}

// As VerbsLink::push: who finds the other at it leaves. A count that finds no room is owed still: the late look comes back for it.
void VerbsReceiver::send_count() {
  if (!ready_.load(std::memory_order_acquire)) return;
  while (counted_.load() != flushed_.load(std::memory_order_seq_cst) && !other_.broken()) {
    const Turn turn(counting_);
    if (!turn) return;
    const uint64_t posted = counts_posted_.load(std::memory_order_relaxed);
    if (posted - counts_through_.load(std::memory_order_acquire) >= window_) {
      poll();
      shared_->own.ring();  // the receiver's thread may wait for what was just taken in
      if (posted - counts_through_.load(std::memory_order_acquire) >= window_) return;
    }
    const uint64_t flushed = flushed_.load(std::memory_order_seq_cst);
    ibv::SendWr request{};
    request.opcode = ibv::kRdmaWriteWithImm;
    request.send_flags = ibv::kSendSignaled;
    request.imm_data = htobe32(static_cast<uint32_t>(flushed));
    if (const int failed = queue_->post(&request)) return other_.fail(std::strerror(failed));
    counts_posted_.store(posted + 1, std::memory_order_release);
    counted_.store(flushed, std::memory_order_seq_cst);
  }
}

bool VerbsReceiver::over() {
  if (!ready_.load() || other_.broken() || closed_.load()) return true;
  send_count();
  poll();
  shared_->own.ring();
  return counted_.load() == flushed_.load() && counts_posted_.load() == counts_through_.load();
}

bool VerbsReceiver::failed() {
  if (!error_) other_.lost(error_);
  return error_ || other_.broken();
}

}  // namespace ringcomm
