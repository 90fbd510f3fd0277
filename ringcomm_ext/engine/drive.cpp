// Driving a group and failing it: the parts of Communicator that run while calls are pending. ending.cpp has its end.
#include <algorithm>
#include <utility>
#include "core/log.h"
#include "engine/communicator.h"
#include "engine/threads.h"

namespace ringcomm {
namespace {

constexpr int64_t kLongestSleepNs = 200'000'000;    // between looks at signals and deadlines
constexpr int64_t kLookNs = 100'000'000;            // between looks at boards and queues for what is late or wrong
constexpr int64_t kOnTheWayNs = 500'000'000;        // guessed: a few retransmissions of a lost packet
constexpr int64_t kMostOnTheWayNs = 5'000'000'000;  // guessed: other ranks may move for ever
constexpr int64_t kJudgeNs = 300'000'000;           // guessed: a poller answers within milliseconds
constexpr int64_t kJudgeNapNs = 100'000;

}  // namespace

bool Communicator::gone(int rank) const {
  return rank >= 0 && rank != spec_.rank &&
         (spec_.peers[rank].process->dead.load(std::memory_order_seq_cst) || board_.state(rank) == RankState::left);
}

// Gone, and nothing of what it sent before is still to come. On another node that takes time: data and the news of its end come by different sockets.
bool Communicator::lost(int rank) {
  if (!gone(rank)) return false;
  if (!spec_.peers[rank].remote() || spec_.peers[rank].process->cut.load()) return true;
  const int64_t now = now_ns();
  int64_t since = 0;
  if (gone_since_[rank].compare_exchange_strong(since, now)) since = now, any_gone_.store(true);
  return now - std::max(since, last_moved_.load()) > kOnTheWayNs || now - since > kMostOnTheWayNs;
}

bool Communicator::wants_driver(int worker) const {
  if (pending() == 0) return false;
  int busy = mailbox_->idle() ? 0 : 1;
  for (const auto& lane : lanes_) busy += lane->idle() ? 0 : 1;
  return busy > waiters_.load(std::memory_order_seq_cst) + worker;
}

bool Communicator::advance() {
  Ended ended;
  bool moved = false;
  if (failed_.load(std::memory_order_acquire) || board_.failed()) {
    end_all(ended);
    moved = !ended.empty();
    deliver(ended);
    return moved;
  }
  // What a dead peer published before it died counts: look at its state after the drive, then drive once more.
  const auto drive = [&](auto&& once) {
    for (int look = 0; look < 2; ++look) {
      Stall stall;
      const bool acted = once(stall);
      moved |= acted;
      if (acted && any_gone_.load(std::memory_order_relaxed)) last_moved_.store(now_ns());
      if (acted || (!stall.request && !stall.broken)) return;
      if (stall.request && stall.request->call.sequence > 0)
        waits_for_.store(stall.waits_for, std::memory_order_relaxed);
      const bool is_lost = lost(stall.waits_for);
      if (stall.mismatch || stall.broken || (is_lost && look == 1)) return settle(stall, ended);
      if (!is_lost) return;
    }
  };
  for (const auto& lane : lanes_) drive([&](Stall& stall) { return lane->drive(ended, stall); });
  drive([&](Stall& stall) {
    return mailbox_->drive([this](int r) { return lost(r); }, ended, stall, [this](int r) { return gone(r); });
  });
  if (failed_.load(std::memory_order_seq_cst))
    end_all(ended);  // who failed the group meanwhile may not have got the lanes this thread had
  deliver(ended);
  return moved;
}

void Communicator::settle(const Stall& stall, Ended& ended) {
  Error error;
  if (stall.broken) {
    error = *stall.broken;
    error.reporter = spec_.rank;
    accuse(error, spec_.rank);
    error.peer = stall.broken->peer;  // a wire's other end; -1: memory was wanted, and no rank
    error.step = stall.step;
    if (stall.request) {  // else a message from any source
      error.collective = static_cast<int32_t>(stall.request->call.collective);
      error.sequence = stall.request->call.sequence;
    }
    std::snprintf(error.text, sizeof error.text, "%.600s (on %s)", stall.broken->text, rank_name(spec_.rank).c_str());
  } else if (stall.mismatch) {
    error = describe_mismatch(stall);
  } else {
    error = describe_loss(stall.waits_for, *stall.request, stall.step);
  }
  fail(std::move(error));
  end_all(ended);
}

// Ranks of several nodes may see the same death in the same moment, and each would tell it from its own side. So the lowest rank that is there decides: its
// node's board has one first cause, and everybody is told that. Where it does not answer, this node's board decides for itself.
void Communicator::post_failure(Error& error) {
  int judge = 0;
  while (control_ && judge < spec_.rank && (gone(judge) || stopped(judge))) ++judge;
  if (control_ && spec_.peers[judge].remote()) {
    control_->propose(judge, error);
    const int64_t until = now_ns() + kJudgeNs;
    while (!board_.failed() && !gone(judge) && now_ns() < until) engine_.nap_for_frames(kJudgeNapNs);
  }
  if (!board_.post(error))
    board_.read_error(error);
  else if (control_)
    control_->tell_failure(error);
}

// The culprit stands on the board before any exception is raised, here or elsewhere; the first cause wins.
void Communicator::fail(Error error) {
  post_failure(error);
  {
    const std::lock_guard<std::mutex> hold(error_mutex_);
    if (!error_) error_ = error;
  }
  for (const PeerInfo& p : spec_.peers) p.process->ring_always();  // they look at the board
  note_failure();
  failed_.store(true, std::memory_order_seq_cst);
  engine_.doorbell().ring_always();
  engine_.wake_drivers();
}

void Communicator::end_all(Ended& ended) {
  Error error;
  {
    const std::lock_guard<std::mutex> hold(error_mutex_);
    if (!error_) board_.read_error(error_);
    error = error_;
  }
  if (board_.failed()) note_failure();
  failed_.store(true, std::memory_order_seq_cst);
  for (const auto& lane : lanes_) lane->fail(error, ended);
  mailbox_->fail(error, ended);
}

bool Communicator::failed(Error& error) const {
  if (!failed_.load(std::memory_order_acquire)) return board_.read_error(error);
  const std::lock_guard<std::mutex> hold(error_mutex_);
  error = error_;
  return true;
}

void Communicator::spoil(Request& request) const {
  Error lost;
  if (board_.read_error(lost)) request.spoil(lost);
}

// With no lane held: callbacks may call back into this group.
void Communicator::deliver(Ended& ended) {
  if (ended.empty()) return;
  for (RequestPtr& request : ended) {
    if (request->large) large_.fetch_sub(1, std::memory_order_relaxed);
    pending_.fetch_sub(1, std::memory_order_seq_cst);
    // It used memory of a rank that may have given it up meanwhile; but a rank posts the failure before it does.
    if (request->borrowed.load(std::memory_order_relaxed) && board_.failed()) spoil(*request);
    auto then = request->complete();
    if (logs(LogLevel::debug)) log_end(*request);
    if (then) engine_.callbacks().run(std::move(then));
    // Nobody holds it any more, so its buffers go with it; freeing a tensor may take Python's lock, which no driver may wait for.
    else if (request.use_count() == 1)
      engine_.callbacks().run([request = std::move(request)] {});
  }
  engine_.doorbell().ring();  // another thread of this process may be waiting for one of these
}

bool Communicator::wait(Request& request, int64_t until_ns, const std::function<bool()>& interrupted) {
  if (request.done()) return true;
  const bool at_exit = engine_.exiting();
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  Backoff backoff(spec_.caller);
  Doorbell& doorbell = engine_.doorbell();
  int64_t asked = now_ns();
  bool stop = false;
  while (true) {
    const bool moved = advance();
    if (request.done()) break;
    if (moved) backoff.reset();
    if (moved || backoff.stay_awake()) continue;
    const uint32_t bell = doorbell.raise();
    if (advance()) backoff.reset();
    if (request.done()) break;
    const int64_t now = now_ns();
    if (now >= until_ns && (stop = true)) break;
    look_at_deadlines(now);
    if (now >= request.deadline_ns && !request.done() && !failed_.load())
      fail(describe_timeout(request, (now - request.started_ns) * 1e-9));
    if (request.done()) break;
    const int64_t until = std::min({until_ns - now, request.deadline_ns - now, kLongestSleepNs});
    const bool signal = until > 0 && doorbell.sleep(bell, until);
    if (engine_.exiting() && !at_exit) park();
    if ((signal || now_ns() - asked > kLongestSleepNs) && interrupted) {
      if ((stop = interrupted())) break;
      asked = now_ns();
    }
  }
  if (engine_.exiting() && !at_exit) park();
  // Hand over: the driver if nobody else waits here, and any other sleeper of this process looks again.
  if (waiters_.fetch_sub(1, std::memory_order_seq_cst) == 1 && pending() > 0) engine_.wake_drivers();
  doorbell.ring();
  return !stop || request.done();
}

void Communicator::look_at_deadlines(int64_t now) {
  if (failed_.load()) return;
  for (const auto& lane : lanes_)
    if (const RequestPtr front = lane->front())
      if (const int r = deserter(*front); r >= 0) return fail(describe_loss(r, *front, -1));
  if (now < next_look_.load(std::memory_order_relaxed)) return;
  next_look_.store(now + kLookNs, std::memory_order_relaxed);
  look_at_ranks(now);
}

// The slow part: who is overdue, and whether those that came made the same call, for ranks that disagree need not meet in a slot.
void Communicator::look_at_ranks(int64_t now) {
  const auto timed_out = [&](const RequestPtr& late) {
    fail(describe_timeout(*late, (now - late->started_ns) * 1e-9));
  };
  for (const auto& lane : lanes_) {
    if (const RequestPtr late = lane->overdue(now)) return timed_out(late);
    const RequestPtr front = lane->front();
    if (!front || now - front->started_ns < kLongestSleepNs) continue;
    ask_others();
    Error error = blame(Cause::mismatch, -1, front->call, -1);
    if (disagreement(*front, waits_for_.load(), error)) {
      await_announcements(front->call.sequence);
      disagreement(*front, waits_for_.load(), error);
      return fail(std::move(error));
    }
  }
  int peer = -1;
  bool wanted = false;
  if (const RequestPtr late = mailbox_->overdue(now, &peer, &wanted)) timed_out(late);
  if (wanted) engine_.doorbell().ring();  // this thread's own sleep ends at once, too, and it drives
}

}  // namespace ringcomm
