#include "connections/verbs_link.h"

#include <endian.h>

#include <cstring>

namespace ringcomm {
namespace {

constexpr int kAtOnce = 16;  // completions

ibv::SendWr write_request(ibv::Sge* from, int pieces, uint64_t to, uint32_t key) {
  ibv::SendWr request{};
  request.sg_list = from;
  request.num_sge = pieces;
  request.opcode = ibv::kRdmaWrite;
  request.wr.rdma.remote_addr = to;
  request.wr.rdma.rkey = key;
  return request;
}

ibv::Sge piece_of(const char* data, size_t bytes, uint32_t key) {
  return {reinterpret_cast<uintptr_t>(data), static_cast<uint32_t>(bytes), key};
}

}  // namespace

VerbsLink::VerbsLink(VerbsShared& shared, const VerbsOutbox& outbox, const Greeting& greeting, int peer)
    : shared_(shared),
      device_(shared.net.device(greeting.channel)),
      outbox_(outbox),
      greeting_(greeting),
      other_(shared, device_, "to", peer) {}

VerbsLink::~VerbsLink() {
  shared_.net.port().cancel(dial_id_);
  other_.stop_listening();
  queue_.reset();
}

// --------------------------------------------------------------------------------------------------------------- meeting

void VerbsLink::dial() {
  dial_id_ = shared_.net.port().dial(shared_.group.peers[static_cast<size_t>(peer())], greeting_,
                                     now_ns() + shared_.group.dial_ns,
                                     [this](int fd, const Error& error) { connected(fd, error); });
}

void VerbsLink::connected(int fd, const Error& error) {
  if (fd < 0) return other_.fail(error);
  const std::lock_guard<std::mutex> hold(meeting_);
  other_.meet(fd);
  Error why;
  if (!make_queue(why)) {
    other_.hang_up();
    return other_.fail(why);
  }
  Note offer = note_of(NoteKind::offer, queue_->address());
  offer.slots = outbox_.slots, offer.capacity = outbox_.capacity;
  if (const char* what = other_.tell(offer)) return other_.fail(what);
  other_.listen([this] { on_note(); });
}

bool VerbsLink::make_queue(Error& error) {
  const auto more = static_cast<uint32_t>((outbox_.capacity + kLineHead - 1) / device_.most_bytes());
  const uint32_t window = outbox_.window();
  // One for each message, and perhaps a mark behind it; more for what the device does not take at once.
  const VerbsQueue::Shape shape{2 * window + outbox_.slots * more, window, sizeof(VerbsLine)};
  queue_ = VerbsQueue::open(device_, shape, shared_.net.traits(), error);
  if (!queue_) return false;
  if (queue_->watch([this] { shared_.own.ring(); })) return true;
  error = other_.reason("its completions cannot be watched");
  return false;
}

void VerbsLink::on_note() {
  Note note;
  const char* why = nullptr;
  while (true) {
    switch (other_.hear(note, why)) {
      case Notes::Came::nothing:
        return;
      case Notes::Came::end:
        poll();  // what came before counts
        return other_.fail(why, true);
      case Notes::Came::note:
        break;
    }
    bool good;
    {
      const std::lock_guard<std::mutex> hold(meeting_);
      good = heed(note);
    }
    if (!good) return;
    shared_.own.ring();
  }
}

bool VerbsLink::heed(const Note& note) {
  Error error;
  switch (note.kind) {
    case NoteKind::answer:
      if (answered_) break;
      answered_ = true;
      if (!queue_->connect(address_of(note), error)) return other_.fail(error), false;
      their_lines_ = note.memory, lines_key_ = note.rkey;
      ready_.store(true, std::memory_order_seq_cst);
      ask_for_slots();
      return true;
    case NoteKind::slots:
      if (!asked_ || has_slots_.load()) break;
      their_slots_ = note.memory, slots_key_ = note.rkey;
      has_slots_.store(true, std::memory_order_seq_cst);
      return true;
    case NoteKind::refusal:
      return other_.fail("it has no memory for the slots"), false;
    case NoteKind::broken:
      return other_.fail(broken_there(note).c_str()), false;
    default:
      break;
  }
  return other_.fail("it said what makes no sense"), false;
}

void VerbsLink::want_slots() {
  const std::lock_guard<std::mutex> hold(meeting_);
  wants_slots_ = true;
  ask_for_slots();
}

void VerbsLink::ask_for_slots() {
  if (!answered_ || !wants_slots_ || asked_) return;
  asked_ = true;
  Note ask;
  ask.kind = NoteKind::ask;
  if (const char* what = other_.tell(ask)) other_.fail(what);
}

// --------------------------------------------------------------------------------------------------------------- sending

// Publish-then-look (the caller, before this) against leave-then-look (the loop): whoever leaves last sees all that was published.
void VerbsLink::push() {
  do {
    const Turn turn(posting_);
    if (!turn) return;
    uint64_t next = posted_.load(std::memory_order_relaxed);
    while (next != outbox_.published.load(std::memory_order_seq_cst) && !broken()) {
      if (const int failed = post(next)) return other_.fail(std::strerror(failed));
      posted_.store(++next, std::memory_order_seq_cst);
    }
  } while (posted_.load() != outbox_.published.load(std::memory_order_seq_cst) && !broken());
}

int VerbsLink::post(uint64_t m) { return outbox_.at(m).small() ? post_line(m) : post_slot(m); }

int VerbsLink::post_line(uint64_t m) {
  const size_t bytes = kLineHead + (outbox_.at(m).length & ~kAskForCount);
  ibv::Sge piece = piece_of(reinterpret_cast<const char*>(&outbox_.line(m)), bytes, outbox_.lines.lkey());
  ibv::SendWr request = write_request(&piece, 1, their_lines_ + m % outbox_.window() * sizeof(VerbsLine), lines_key_);
  if (bytes <= queue_->inline_bytes()) request.send_flags |= ibv::kSendInline;
  return post_last(request, m, (m + 1) % (outbox_.window() / 4) == 0);
}

// Payload and head in one request, of which only the last part of a payload that the device does not take at once makes a completion at the reader: a reliable
// connection delivers in the order of posting.
int VerbsLink::post_slot(uint64_t m) {
  const VerbsOutbox::Entry& entry = outbox_.at(m);
  const char* from = outbox_.slot(entry.payload);
  uint64_t to = their_slots_ + entry.payload % outbox_.slots * verbs_stride(outbox_.capacity);
  size_t left = entry.length & ~kAskForCount;
  while (left + kLineHead > device_.most_bytes()) {
    const size_t part = std::min(left, device_.most_bytes());
    ibv::Sge piece = piece_of(from, part, outbox_.payloads.lkey());
    ibv::SendWr request = write_request(&piece, 1, to, slots_key_);
    if (const int failed = queue_->post(&request)) return failed;
    from += part, to += part, left -= part;
  }
  ibv::Sge pieces[] = {piece_of(from, left, outbox_.payloads.lkey()),
                       piece_of(reinterpret_cast<const char*>(&outbox_.line(m)), kLineHead, outbox_.lines.lkey())};
  const int first = left > 0 ? 0 : 1;  // a piece of nothing means 2 GiB to some devices
  ibv::SendWr request = write_request(pieces + first, 2 - first, to, slots_key_);
  return post_last(request, m, true);
}

// Completions here are asked for where a slot hangs on it, and for a part of the small ones: they come in order, so one tells for all before it.
int VerbsLink::post_last(ibv::SendWr& request, uint64_t m, bool signaled) {
  request.opcode = ibv::kRdmaWriteWithImm;
  request.imm_data = htobe32(outbox_.at(m).length);
  if (signaled) {
    request.send_flags |= ibv::kSendSignaled;
    request.wr_id = marked_ = m + 1;
  }
  return queue_->post(&request);
}

// An empty write whose completion tells that all before it is through.
void VerbsLink::mark() {
  const Turn turn(posting_);
  if (!turn || broken() || marked_ == posted_.load()) return;
  ibv::SendWr request = write_request(nullptr, 0, their_lines_, lines_key_);
  request.send_flags = ibv::kSendSignaled;
  request.wr_id = marked_ = posted_.load();
  if (const int failed = queue_->post(&request)) other_.fail(std::strerror(failed));
}

// ----------------------------------------------------------------------------------------------------------- completions

void VerbsLink::poll() {
  if (!ready_.load(std::memory_order_acquire)) return;
  const Turn turn(polling_);
  if (!turn) return;
  FirstFailure failure;
  ibv::Wc completions[kAtOnce];
  uint32_t counts = 0;
  uint64_t counted = counted_.load(std::memory_order_relaxed);
  int n;
  do {
    n = queue_->poll(completions, kAtOnce);
    for (int i = 0; i < n; ++i) {
      const ibv::Wc& wc = completions[i];
      if (wc.status != ibv::kWcSuccess) {
        failure.add(wc);
      } else if (wc.opcode & ibv::kWcRecv) {
        counted += be32toh(wc.imm_data) - static_cast<uint32_t>(counted);
        ++counts;
      } else {
        through_.store(wc.wr_id, std::memory_order_release);
      }
    }
  } while (n == kAtOnce);
  // Before more is published, by the other thread too: the reader never sends more counts than messages, and for each of a window there is a receive.
  int refused = 0;
  if (counts > 0 && n >= 0 && !failure && !broken()) refused = queue_->post_receives(counts);
  counted_.store(counted, std::memory_order_release);
  if (n < 0) return other_.fail("its completion queue failed");
  if (failure) return other_.fail(failure);
  if (refused != 0) other_.fail(std::strerror(refused));
}

// Arm-then-poll: what came before the arming wakes nobody.
bool VerbsLink::wake_sleepers_on_news() {
  if (!ready_.load(std::memory_order_seq_cst) || broken()) return false;
  if (shared_.own.sleeping.load(std::memory_order_seq_cst) == 0) return false;
  const uint64_t before = counted() + through();
  queue_->arm();
  poll();
  return counted() + through() != before;
}

bool VerbsLink::over() {
  const uint64_t published = outbox_.published.load(std::memory_order_seq_cst);
  if (broken() || counted() == published) return true;
  push();
  if (posted_.load() == published) mark();
  poll();
  shared_.own.ring();  // its sender's thread may wait for what was just taken in
  return through() == published || counted() == published;
}

}  // namespace ringcomm
