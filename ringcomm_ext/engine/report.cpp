// Turning what is known at a failure into the sentence the user reads: who, where, in which call, and who had not come. docs/hangs.md explains them.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/words.h"

namespace ringcomm {
namespace {

constexpr size_t kNamed = 4;  // ranks named with host and pid; a sentence with more is not read
constexpr int64_t kAnnouncedNs =
    200'000'000;  // guessed: ranks of one job reach a call within this, or they are late and not wrong

constexpr int64_t kAnswerNs = 500'000'000;  // one that takes longer is silent (control_group.cpp)
constexpr int64_t kNapNs = 1'000'000;

bool is_message(const Fingerprint& f) { return f.collective == Collective::send || f.collective == Collective::recv; }

// The size a sender mixed into its tag (Interpreter::size_tag): there is no way back but to try. Only for the sentence. -1: none that is small.
int64_t bytes_of_tag(uint32_t size_tag, size_t element) {
  constexpr int64_t kTries = 1 << 22;  // among so few a wrong one fits once in a thousand
  for (int64_t i = 0; i < kTries; ++i)
    if (Interpreter::size_tag(i * element) == size_tag) return i * static_cast<int64_t>(element);
  return -1;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------- names

// Ranks are shown as the user knows them: by their number in the whole job, whatever they are in this group.
int Communicator::shown(int rank) const { return spec_.peers[rank].global_rank; }

std::string Communicator::rank_name(int rank) const {
  const PeerInfo& p = spec_.peers[rank];
  return "rank " + std::to_string(p.global_rank) + " (host " + p.host + ", pid " + std::to_string(p.pid) + ")";
}

std::string Communicator::call_text(const Fingerprint& f) const {
  char text[192];
  const std::string peer = f.root < 0 || f.root >= spec_.ranks ? "any source" : "rank " + std::to_string(shown(f.root));
  if (is_message(f)) {
    std::snprintf(text, sizeof text, "%s of %llu bytes %s %s", name(f.collective),
                  static_cast<unsigned long long>(f.bytes), f.collective == Collective::send ? "to" : "from",
                  peer.c_str());
    return text;
  }
  std::vector<std::string> details;
  if (f.collective != Collective::barrier) details.push_back(name(f.dtype));
  if (f.op != ReduceOp::none && f.collective != Collective::barrier) details.push_back(name(f.op));
  if (f.root >= 0) details.push_back("root " + std::to_string(shown(f.root)));
  if (f.uniform && f.collective != Collective::barrier) details.push_back(std::to_string(f.bytes) + " bytes");
  if (!f.uniform && (f.collective == Collective::all_gather || f.collective == Collective::reduce_scatter))
    details.push_back("parts of different sizes");
  std::snprintf(text, sizeof text, "%s #%llu%s%s%s", name(f.collective), static_cast<unsigned long long>(f.sequence),
                details.empty() ? "" : " (", joined(details, ", ").c_str(), details.empty() ? "" : ")");
  return text;
}

std::vector<int> Communicator::all_shown(std::vector<int> ranks) const {
  for (int& r : ranks) r = shown(r);
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::string Communicator::rank_names(const std::vector<int>& ranks) const {
  if (ranks.size() > kNamed) return "ranks " + ranges(all_shown(ranks));
  std::vector<std::string> names;
  for (int r : ranks) names.push_back(rank_name(r));
  return joined(names, ", ");
}

Error Communicator::blame(Cause cause, int culprit, const Fingerprint& call, int step) const {
  Error e;
  e.cause = cause;
  e.reporter = spec_.rank;
  e.step = step;
  e.collective = static_cast<int32_t>(call.collective);
  e.sequence = call.sequence;
  accuse(e, culprit);
  return e;
}

void Communicator::accuse(Error& e, int culprit) const {
  e.rank = e.peer = culprit;
  if (culprit < 0) return;
  e.pid = spec_.peers[culprit].pid;
  std::snprintf(e.host, sizeof e.host, "%s", spec_.peers[culprit].host.c_str());
}

// Stopped (SIGSTOP, a debugger): alive, but it will not read. By its pidfd, for a pid means something else in another namespace.
// On another node: it has answered no question for a while.
bool Communicator::stopped(int rank) const {
  if (spec_.peers[rank].remote()) return control_->silent(rank);
  char path[64], text[1024] = {};
  const auto read = [&] {
    FILE* f = std::fopen(path, "re");
    const size_t n = f ? std::fread(text, 1, sizeof text - 1, f) : 0;
    if (f) std::fclose(f);
    text[n] = 0;
    return std::string(text, n);
  };
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", spec_.peers[rank].process->pidfd);
  const std::string info = read();
  const size_t at = info.find("\nPid:");
  int pid = -1;
  if (at == std::string::npos || std::sscanf(info.c_str() + at + 5, "%d", &pid) != 1 || pid <= 0) return false;
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const std::string stat = read();
  const size_t state = stat.rfind(") ");
  return state != std::string::npos && state + 2 < stat.size() && (stat[state + 2] == 'T' || stat[state + 2] == 't');
}

const char* Communicator::stopped_text(int rank) const {
  return spec_.peers[rank].remote() ? "its process does not answer: stopped?" : "its process is stopped";
}

bool Communicator::peers_stopped() const {
  for (int r = 0; r < spec_.ranks; ++r)
    if (r != spec_.rank && stopped(r)) return true;
  return false;
}

// ---------------------------------------------------------------------------------------------------------------- gone

const char* Communicator::loss_text(int rank) const {
  if (board_.state(rank) == RankState::left) return "has left (it destroyed the group or ended)";
  return spec_.peers[rank].process->cut.load()
             ? "is out of reach (its host is down or silent, or the link to it is cut)"
             : "died (its process is gone)";
}

Error Communicator::describe_loss(int culprit, const Request& request, int step) const {
  // A process that ends in order leaves first, so what died without leaving did not mean to.
  const bool left = board_.state(culprit) == RankState::left;
  Error e = blame(left ? Cause::peer_left : Cause::peer_died, culprit, request.call, step);
  // What a rank of another node did just before it died is not known here.
  const bool came = is_message(request.call) || (!left && spec_.peers[culprit].remote()) ||
                    board_.read(culprit, nullptr).sequence >= request.call.sequence;
  std::snprintf(e.text, sizeof e.text, "ringcomm: %s %s while rank %d was waiting for it in %s of group '%s'%s",
                rank_name(culprit).c_str(), loss_text(culprit), shown(spec_.rank), call_text(request.call).c_str(),
                spec_.name.c_str(), came ? "" : "; it had not made this call");
  return e;
}

// A rank that is gone and had not made this call: waiting for those between it and this rank is of no use. -1: none.
int Communicator::deserter(const Request& request) {
  for (int r = 0; r < spec_.ranks; ++r)
    if (lost(r) && board_.read(r, nullptr).sequence < request.call.sequence) return r;
  return -1;
}

// ---------------------------------------------------------------------------------------------------------------- late

// Ranks whose last announced call comes before this one.
std::string Communicator::missing(const Request& request, int* first) const {
  std::vector<std::string> late;
  std::vector<int> more;
  for (int r = 0; r < spec_.ranks; ++r) {
    int64_t age;
    const Fingerprint last = board_.read(r, &age);
    if (r == spec_.rank || last.sequence >= request.call.sequence) continue;
    if (*first < 0) *first = r;
    if (late.size() == kNamed) {
      more.push_back(r);
      continue;
    }
    const bool old_news = spec_.peers[r].remote() && stopped(r);
    std::string text = rank_name(r) + " has not made this call" + (old_news ? ", as far as is known here" : "");
    char ago[32];
    std::snprintf(ago, sizeof ago, ", %.1f s ago", age * 1e-9);
    if (last.sequence != 0)
      text += "; its last was " + call_text(last) + ago;
    else if (!old_news)
      text += " and none before";
    if (stopped(r)) text += std::string("; ") + stopped_text(r);
    late.push_back(std::move(text));
  }
  if (!more.empty()) late.push_back("nor have ranks " + ranges(all_shown(more)));
  return joined(late, "; ");
}

std::string Communicator::who_is_missing(const Request& request) const {
  hear_others();
  if (is_message(request.call)) return who_does_not_go_on(request, request.call.root);
  int first = -1;
  const std::string text = missing(request, &first);
  return text.empty() ? who_does_not_go_on(request, waits_for_.load()) : text;
}

std::string Communicator::who_does_not_go_on(const Request& request, int culprit) const {
  const Fingerprint& call = request.call;
  if (culprit < 0) return is_message(call) ? "no rank has sent a matching message" : "all ranks have made this call";
  std::string why;
  if (stopped(culprit))
    why = std::string("; ") + stopped_text(culprit);
  else if (is_message(call))
    why = "";
  else
    why = call.uniform ? " (stuck elsewhere?)" : " (stuck elsewhere, or it sends less than is expected here?)";
  if (is_message(call))
    return rank_name(culprit) + (call.collective == Collective::send ? " has not received it" : " has not sent it") +
           why;
  return "all ranks have made this call, but " + rank_name(culprit) + " does not go on" + why;
}

Error Communicator::describe_timeout(const Request& request, double seconds) const {
  Error e = blame(Cause::mismatch, -1, request.call, -1);
  hear_others();
  if (!is_message(request.call) && disagreement(request, waits_for_.load(), e)) return e;
  int culprit = -1;
  std::string who = is_message(request.call) ? "" : missing(request, &culprit);
  if (who.empty()) {
    culprit = is_message(request.call) ? request.call.root : waits_for_.load();
    for (int r = 0; r < spec_.ranks && !is_message(request.call); ++r)
      if (r != spec_.rank && stopped(r)) culprit = r;
    who = who_does_not_go_on(request, culprit);
  }
  e.cause = Cause::timeout;
  accuse(e, culprit);
  std::snprintf(e.text, sizeof e.text, "ringcomm: Timed out after %.1f s on rank %d in %s of group '%s': %s", seconds,
                shown(spec_.rank), call_text(request.call).c_str(), spec_.name.c_str(), who.c_str());
  return e;
}

// ---------------------------------------------------------------------------------------------------------------- disagreement

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
  if (is_message(mine)) {
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
