// The monitored barrier: a barrier that says who did not come, to every rank that came, and leaves the group as it was.
//
// It is not one of the group's calls: it has no sequence number, stands in no queue, and its time-out fails nobody else's call (roll_call.h).
#include <poll.h>

#include <algorithm>
#include <cstdio>

#include "engine/communicator.h"
#include "engine/threads.h"
#include "engine/words.h"

namespace ringcomm {
namespace {

constexpr int64_t kLongestSleepNs = 200'000'000;  // between looks at signals
constexpr int64_t kVerdictNs = 500'000'000;  // what rank 0's process may take to answer; then it is taken to be stopped
constexpr size_t kDescribed = 4;             // missing ranks with host, pid and last call; the others by number
constexpr size_t kWrittenOut = 17;           // a run of so many numbers is abbreviated

// The verdict of a rank that was told of a death may come before this process is told of it.
bool has_ended(int pidfd) {
  pollfd p{pidfd, POLLIN, 0};  // -1, of a process on another node: no
  return poll(&p, 1, 0) == 1;
}

}  // namespace

// Whether waiting for them can still help. Without `wait_all` one that is gone is enough to end it.
bool Communicator::hopeless(const std::vector<int>& absent, bool wait_all) const {
  const auto lost = [this](int r) { return gone(r); };
  return wait_all ? std::all_of(absent.begin(), absent.end(), lost) : std::any_of(absent.begin(), absent.end(), lost);
}

// Returns with a verdict, or with a sentence: the group has failed, or "interrupted".
std::string Communicator::await_verdict(uint32_t number, int64_t until_ns, bool wait_all,
                                        const std::function<bool()>& interrupted) {
  const bool at_exit = engine_.exiting();
  int64_t asked = now_ns(), asked_to_give_up = 0;
  while (roll_.verdict(number) == RollCall::Verdict::none) {
    const uint32_t bell = engine_.doorbell().raise();
    const std::vector<int> absent = roll_.absent(number);
    if (absent.empty() && conclude(number, true, &asked_to_give_up)) break;
    if (Error error; failed(error)) return error.text;
    const int64_t now = now_ns();
    const bool over = now >= until_ns || (!absent.empty() && hopeless(absent, wait_all));
    if (over && conclude(number, false, &asked_to_give_up)) break;
    ask_others();
    const int64_t longest = over ? kVerdictNs : until_ns - now;
    const bool signal = engine_.doorbell().sleep(bell, std::min(longest, kLongestSleepNs));
    if (engine_.exiting() && !at_exit) park();
    if (!signal && now_ns() - asked < kLongestSleepNs) continue;
    if (interrupted()) return "interrupted";
    asked = now_ns();
  }
  return "";
}

// Gives the verdict, or has rank 0's node give it: were each node to give its own, they might differ. False: it is to come.
bool Communicator::conclude(uint32_t number, bool all_came, int64_t* asked_ns) {
  if (spec_.peers[0].remote() && !gone(0)) {
    if (all_came) return false;  // rank 0 is among them and sees it, too
    const int64_t now = now_ns();
    if (*asked_ns == 0) {
      *asked_ns = now;
      control_->ask_to_give_up(number);
    }
    if (now - *asked_ns < kVerdictNs) return false;
  }
  all_came ? roll_.pass(number) : roll_.give_up(number);
  if (control_) control_->tell_verdict();
  ring_all();
  return true;
}

void Communicator::ring_all() const {
  for (const PeerInfo& p : spec_.peers) p.process->ring();
}

std::string Communicator::monitored_barrier(int64_t timeout_ns, bool wait_all,
                                            const std::function<bool()>& interrupted) {
  const std::unique_lock<std::mutex> turn(meeting_, std::try_to_lock);
  if (!turn) return "ringcomm: another thread of this rank is in monitoredBarrier of group '" + spec_.name + "'";
  const int64_t began = now_ns();
  const int64_t until = timeout_ns > kNoDeadline - began ? kNoDeadline : began + timeout_ns;
  bool late = false;
  const uint32_t number = roll_.arrive(&late);
  if (late) return came_late(number);
  if (control_) control_->tell();
  ring_all();
  const std::string error = await_verdict(number, until, wait_all, interrupted);
  if (!error.empty() || roll_.verdict(number) == RollCall::Verdict::passed) return error;
  const std::vector<int> missed = roll_.missed(number);
  if (std::count(missed.begin(), missed.end(), spec_.rank)) return came_late(number);
  const int64_t now = now_ns();
  return who_missed(number, missed, now >= until ? now - began : -1, wait_all);
}

std::string Communicator::came_late(uint32_t number) const {
  return "ringcomm: Rank " + std::to_string(shown(spec_.rank)) + " came too late to monitoredBarrier #" +
         std::to_string(number) + " of group '" + spec_.name +
         "': it was given up before. The next one of this rank is the next one of the others again";
}

// "Rank 1 failed to pass monitoredBarrier": the words of gloo's message, which scripts and torch's own tests look for.
std::string Communicator::who_missed(uint32_t number, const std::vector<int>& missed, int64_t waited_ns,
                                     bool wait_all) const {
  const std::string me = std::to_string(shown(spec_.rank));
  const std::string which = " monitoredBarrier #" + std::to_string(number) + " of group '" + spec_.name + "'";
  char after[48];
  std::snprintf(after, sizeof after, " after %lld ms. ", static_cast<long long>(waited_ns / 1'000'000));
  std::string text = waited_ns >= 0 ? "ringcomm: Rank " + me + " timed out in" + which + after
                                    : "ringcomm:" + which + " was given up while rank " + me + " was waiting. ";
  const std::vector<int> ranks = all_shown(missed);
  const std::vector<int> others(ranks.begin() + 1, ranks.end());
  const auto rank_list = [](const char* word, const std::vector<int>& some) {
    return word + std::string(some.size() == 1 ? " " : "s ") + ranges(some, kWrittenOut);
  };
  text += rank_list("Rank", wait_all ? ranks : std::vector<int>{ranks.front()}) + " failed to pass monitoredBarrier";
  if (!wait_all && !others.empty()) text += ", and so did " + rank_list("rank", others);
  std::vector<std::string> details;
  for (size_t i = 0; i < std::min(missed.size(), kDescribed); ++i) details.push_back(whereabouts(missed[i]));
  return text + ": " + joined(details, "; ");
}

std::string Communicator::whereabouts(int rank) const {
  int64_t age;
  const Fingerprint last = board_.read(rank, &age);
  char ago[32];
  std::snprintf(ago, sizeof ago, ", %.1f s ago", age * 1e-9);
  std::string text = rank_name(rank);
  if (board_.state(rank) == RankState::left) {
    text += " has left";
  } else if (gone(rank) && spec_.peers[rank].process->cut.load()) {
    text += std::string(" ") + loss_text(rank);
  } else if (gone(rank) || has_ended(spec_.peers[rank].process->pidfd)) {
    text += " died (its process is gone)";
  } else if (stopped(rank)) {
    text += spec_.peers[rank].remote() ? " does not answer: stopped?" : " is stopped";
  } else {
    text += " has not come";
  }
  return text +
         (last.sequence == 0 ? ", it has made no call of this group" : ", its last call was " + call_text(last) + ago);
}

}  // namespace ringcomm
