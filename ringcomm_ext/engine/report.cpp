// Turning what is known at a failure into the sentence the user reads: who, where, in which call, and who had not come. docs/hangs.md explains them.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/communicator.h"
#include "engine/words.h"

namespace ringcomm {
namespace {

constexpr size_t kNamed = 4;  // ranks named with host and pid; a sentence with more is not read

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
  if (f.is_message()) {
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
  const bool came = request.call.is_message() || (!left && spec_.peers[culprit].remote()) ||
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
  if (request.call.is_message()) return who_does_not_go_on(request, request.call.root);
  int first = -1;
  const std::string text = missing(request, &first);
  return text.empty() ? who_does_not_go_on(request, waits_for_.load()) : text;
}

std::string Communicator::who_does_not_go_on(const Request& request, int culprit) const {
  const Fingerprint& call = request.call;
  if (culprit < 0) return call.is_message() ? "no rank has sent a matching message" : "all ranks have made this call";
  std::string why;
  if (stopped(culprit))
    why = std::string("; ") + stopped_text(culprit);
  else if (call.is_message())
    why = "";
  else
    why = call.uniform ? " (stuck elsewhere?)" : " (stuck elsewhere, or it sends less than is expected here?)";
  if (call.is_message())
    return rank_name(culprit) + (call.collective == Collective::send ? " has not received it" : " has not sent it") +
           why;
  return "all ranks have made this call, but " + rank_name(culprit) + " does not go on" + why;
}

Error Communicator::describe_timeout(const Request& request, double seconds) const {
  Error e = blame(Cause::mismatch, -1, request.call, -1);
  hear_others();
  if (!request.call.is_message() && disagreement(request, waits_for_.load(), e)) return e;
  int culprit = -1;
  std::string who = request.call.is_message() ? "" : missing(request, &culprit);
  if (who.empty()) {
    culprit = request.call.is_message() ? request.call.root : waits_for_.load();
    const bool known = culprit >= 0 && culprit != spec_.rank && stopped(culprit);
    for (int r = 0; r < spec_.ranks && !known && !request.call.is_message(); ++r)
      if (r != spec_.rank && stopped(r)) culprit = r;
    who = who_does_not_go_on(request, culprit);
  }
  e.cause = Cause::timeout;
  accuse(e, culprit);
  std::snprintf(e.text, sizeof e.text, "ringcomm: Timed out after %.1f s on rank %d in %s of group '%s': %s", seconds,
                shown(spec_.rank), call_text(request.call).c_str(), spec_.name.c_str(), who.c_str());
  return e;
}

}  // namespace ringcomm
