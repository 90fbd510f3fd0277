// Ranks that are in different calls: what each announced, whose side is the odd one, and the sentence about it. docs/hangs.md explains them.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/words.h"

namespace ringcomm {
namespace {

constexpr int64_t kAnnouncedNs =
    200'000'000;  // guessed: ranks of one job reach a call within this, or they are late and not wrong

constexpr int64_t kAnswerNs = 500'000'000;  // one that takes longer is silent (control_group.cpp)
constexpr int64_t kNapNs = 1'000'000;

// The size a sender mixed into its tag (Interpreter::size_tag): there is no way back but to try. Only for the sentence. -1: none that is small.
int64_t bytes_of_tag(uint32_t size_tag, size_t element) {
  constexpr int64_t kTries = 1 << 22;  // among so few a wrong one fits once in a thousand
  for (int64_t i = 0; i < kTries; ++i)
    if (Interpreter::size_tag(i * element) == size_tag) return i * static_cast<int64_t>(element);
  return -1;
}

}  // namespace

// What the ranks announced under this number. Empty while it is all the same.
Communicator::Sides Communicator::sides(uint64_t sequence) const {
  std::map<std::string, std::vector<int>> said;
  Fingerprint first, f;
  for (int r = 0; r < spec_.ranks; ++r) {
    if (!board_.find(r, sequence, f)) continue;
    if (said.empty()) first = f;
    Fingerprint alike = f;
    alike.schedule = first.schedule;
    said[call_text(f) + (alike == first && !(f == first) ? " by another schedule" : "")].push_back(r);
  }
  if (said.size() < 2) return {};
  Sides sides(said.begin(), said.end());
  std::stable_sort(sides.begin(), sides.end(),
                   [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  return sides;
}

// The first call, up to this one, that ranks announced differently: a rank whose part of it had ended is at a later one by now. The smaller side is the
// culprit and comes first; where sides are equal, `peer` is. False while all is the same.
bool Communicator::disagreement(const Request& request, int peer, Error& e) const {
  const uint64_t last = request.call.sequence;
  for (uint64_t sequence = last > Board::kCalls ? last - Board::kCalls + 1 : 1; sequence <= last; ++sequence) {
    const Sides found = sides(sequence);
    if (found.empty()) continue;
    const auto holds = [](const auto& side, int rank) {
      return std::count(side.second.begin(), side.second.end(), rank) > 0;
    };
    const auto other =
        std::find_if(found.begin(), found.end(), [&](const auto& side) { return !holds(side, spec_.rank); });
    const bool odd_one = found.front().second.size() < found.back().second.size();
    accuse(e, odd_one ? found.front().second.front() : holds(*other, peer) ? peer : other->second.front());
    std::vector<std::string> parts;
    for (const auto& [text, ranks] : found) parts.push_back(rank_names(ranks) + " called " + text);
    std::snprintf(e.text, sizeof e.text, "ringcomm: ranks disagree on call #%llu of group '%s': %s",
                  static_cast<unsigned long long>(sequence), spec_.name.c_str(), joined(parts, "; ").c_str());
    return true;
  }
  return false;
}

// Who is wrong shows when most have come; ranks of one job are seldom far apart.
void Communicator::await_announcements(uint64_t sequence) const {
  hear_others();
  const int64_t until = now_ns() + kAnnouncedNs;
  const auto all_came = [&] {
    for (int r = 0; r < spec_.ranks; ++r)
      if (r != spec_.rank && !gone(r) && board_.read(r, nullptr).sequence < sequence) return false;
    return true;
  };
  while ((spec_.ranks > 2 || control_) && !board_.failed() && !all_came() && now_ns() < until) {
    ask_others();
    engine_.nap_for_frames(kNapNs);
  }
}

void Communicator::ask_others() const {
  if (control_) control_->ask();
}

// What the board says of ranks on other nodes is as old as their last answer: before a sentence is made of it, a new one.
void Communicator::hear_others() const {
  if (!control_) return;
  control_->ask(true);
  const int64_t until = now_ns() + kAnswerNs;
  while (!control_->answered() && now_ns() < until) engine_.nap_for_frames(kNapNs);
}

// Uneven calls: what the peer sent had another size than is expected.
bool Communicator::describe_sizes(const Stall& stall, Error& e) const {
  Fingerprint f;
  if (!board_.find(stall.waits_for, stall.request->call.sequence, f) || f.uniform) return false;
  const int64_t sent = bytes_of_tag(stall.foreign_tag ^ f.hash(), element_size(f.dtype));
  if (sent < 0) return false;
  const std::string expected = stall.expected_bytes == 0 ? "none" : std::to_string(stall.expected_bytes) + " bytes";
  std::snprintf(e.text, sizeof e.text,
                "ringcomm: sizes differ in %s of group '%s': %s sends %lld bytes to %s, which expects %s from it",
                call_text(f).c_str(), spec_.name.c_str(), rank_name(stall.waits_for).c_str(),
                static_cast<long long>(sent), rank_name(spec_.rank).c_str(), expected.c_str());
  return true;
}

Error Communicator::describe_mismatch(const Stall& stall) const {
  const Request& request = *stall.request;
  const Fingerprint& mine = request.call;
  Error e = blame(Cause::mismatch, stall.waits_for, mine, stall.step);
  const std::string peer = rank_name(stall.waits_for), me = rank_name(spec_.rank);
  const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  if (mine.is_message()) {
    std::snprintf(
        e.text, sizeof e.text,
        "ringcomm: sizes differ in group '%s': %s sent a message of %llu bytes, but %s receives it into %llu bytes",
        spec_.name.c_str(), peer.c_str(), number(stall.sent_bytes), me.c_str(), number(stall.expected_bytes));
    return e;
  }
  await_announcements(mine.sequence);
  if (disagreement(request, stall.waits_for, e)) return e;
  if (describe_sizes(stall, e)) return e;
  std::string theirs = "its last was " + call_text(board_.read(stall.waits_for, nullptr));
  for (int i = 0; i < Board::kCalls; ++i)
    if (Fingerprint f; mine.sequence > static_cast<uint64_t>(i) && board_.find(stall.waits_for, mine.sequence - i, f) &&
                       f.hash() == stall.foreign_tag)
      theirs = "what it sent belongs to " + call_text(f);
  std::snprintf(e.text, sizeof e.text,
                "ringcomm: ranks disagree on call #%llu of group '%s': %s is in %s; %s is in another call: %s",
                number(mine.sequence), spec_.name.c_str(), me.c_str(), call_text(mine).c_str(), peer.c_str(),
                theirs.c_str());
  return e;
}

}  // namespace ringcomm
