// The end of a group: aborting it, or leaving it in order.
#include <time.h>

#include <algorithm>
#include <cstdio>

#include "engine/communicator.h"

namespace ringcomm {
namespace {

constexpr int64_t kAskNs = 100'000'000;        // between questions to the others, whether they are stopped
constexpr int64_t kStoppedNs = 2'000'000'000;  // a peer stopped for so long is not waited for when a group is destroyed

// While another thread has the lane and there is no one event to wait for.
void nap() {
  const timespec t{0, 200'000};
  nanosleep(&t, nullptr);
}

}  // namespace

void Communicator::abort(const std::string& reason) {
  Error e;
  e.cause = Cause::aborted;
  e.rank = e.reporter = spec_.rank;
  e.pid = spec_.peers[spec_.rank].pid;
  std::snprintf(e.host, sizeof e.host, "%s", spec_.peers[spec_.rank].host.c_str());
  std::snprintf(e.text, sizeof e.text, "ringcomm: group '%s' was aborted by %s: %s", spec_.name.c_str(),
                rank_name(spec_.rank).c_str(), reason.c_str());
  fail(e);
  // Whoever drives now sees the flag and leaves; bounded, because advance() never waits.
  const int64_t until = now_ns() + 2'000'000'000;
  while (pending() > 0 && now_ns() < until) {
    advance();
    if (pending() > 0) nap();
  }
}

void Communicator::let_end(int64_t until_ns, bool owes_sends) {
  int64_t stopped_since = 0, next_look = 0;
  while (!failed_.load()) {
    const int64_t now = now_ns();
    const bool sends = owes_sends && mailbox_->pending_sends() > 0;
    if (now >= until_ns && !sends) return;
    const bool collectives = std::any_of(lanes_.begin(), lanes_.end(), [](const auto& l) { return !l->idle(); });
    if (!collectives && mailbox_->pending_sends() == 0) return;
    if (sends && now >= next_look) {
      next_look = now + kAskNs;
      ask_others();
      if (!peers_stopped())
        stopped_since = 0;
      else if (stopped_since == 0)
        stopped_since = now;
      else if (now - stopped_since > kStoppedNs)
        return;
    }
    if (!advance()) nap();
    look_at_deadlines(now);
  }
}

void Communicator::leave(int64_t until_ns, bool owes_sends) {
  if (board_.failed()) note_failure();
  let_end(until_ns, owes_sends);
  leave_record();
  Error last;
  {
    const std::lock_guard<std::mutex> hold(error_mutex_);
    if (!error_ && !board_.read_error(error_)) {
      error_.cause = Cause::aborted;
      error_.reporter = spec_.rank;
      accuse(error_, spec_.rank);
      error_.peer = -1;
      std::snprintf(error_.text, sizeof error_.text,
                    "ringcomm: group '%s' was destroyed on rank %d while this call was still pending",
                    spec_.name.c_str(), shown(spec_.rank));
    }
    last = error_;
  }
  // Readers that are late would take what the caller may now write there for what it lent them.
  for (const auto& lane : lanes_)
    if (const RequestPtr front = lane->front(); front && front->lends.load())
      if (board_.post(last) && control_) control_->tell_failure(last);
  board_.set_state(RankState::left);
  if (control_) control_->tell();
  for (const PeerInfo& p : spec_.peers) p.process->ring_always();
  failed_.store(true, std::memory_order_seq_cst);
  while (pending() > 0) {
    Ended ended;
    end_all(ended);
    deliver(ended);
    if (pending() > 0) nap();  // another thread has the lane and is about to see the failure
  }
}

}  // namespace ringcomm
