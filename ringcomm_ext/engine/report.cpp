// Turning what is known at a failure into the sentence the user reads: who, where, in which call, and who had not come.
#include <sys/stat.h>

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "engine/communicator.h"

namespace ringcomm {
namespace {

std::string call_text(const Fingerprint& f) {
  char text[192];
  if (f.collective == Collective::send || f.collective == Collective::recv) {
    const std::string peer = f.root == kAnySource ? "any source" : "rank " + std::to_string(f.root);
    std::snprintf(text, sizeof text, "%s of %llu bytes %s %s", name(f.collective), static_cast<unsigned long long>(f.bytes), f.collective == Collective::send ? "to" : "from",
                  peer.c_str());
    return text;
  }
  std::string details;
  const auto add = [&details](const std::string& d) { details += (details.empty() ? "" : ", ") + d; };
  if (f.collective != Collective::barrier) add(name(f.dtype));
  if (f.op != ReduceOp::none && f.collective != Collective::barrier) add(name(f.op));
  if (f.root >= 0) add("root " + std::to_string(f.root));
  if (f.bytes > 0 && f.collective != Collective::barrier) add(std::to_string(f.bytes) + " bytes");
  std::snprintf(text, sizeof text, "%s #%llu%s%s%s", name(f.collective), static_cast<unsigned long long>(f.sequence), details.empty() ? "" : " (", details.c_str(),
                details.empty() ? "" : ")");
  return text;
}

std::string list(const std::vector<std::string>& items) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : "; ") + items[i];
  return text;
}

}  // namespace

std::string Communicator::rank_name(int rank) const {
  const PeerInfo& p = spec_.peers[rank];
  return "rank " + std::to_string(rank) + " (host " + p.host + ", pid " + std::to_string(p.pid) + ")";
}

Error Communicator::blame(Cause cause, int culprit, const Fingerprint& call, int step) const {
  Error e;
  e.cause = cause;
  e.rank = culprit;
  e.reporter = spec_.rank;
  e.peer = culprit;
  e.step = step;
  e.collective = static_cast<int32_t>(call.collective);
  e.sequence = call.sequence;
  if (culprit >= 0) {
    e.pid = spec_.peers[culprit].pid;
    std::snprintf(e.host, sizeof e.host, "%s", spec_.peers[culprit].host.c_str());
  }
  return e;
}

Error Communicator::describe(Cause cause, int culprit, const Stall& stall) const {
  Error e = blame(cause, culprit, stall.request->call, stall.step);
  const char* what = cause == Cause::peer_died ? "died (its process is gone)" : "has left (it destroyed the group or ended)";
  std::snprintf(e.text, sizeof e.text, "ringcomm: %s %s while rank %d was waiting for it in %s of group '%s'", rank_name(culprit).c_str(), what, spec_.rank,
                call_text(stall.request->call).c_str(), spec_.name.c_str());
  return e;
}

// Ranks whose last announced call comes before this one.
std::string Communicator::missing(const Request& request, int* first) const {
  std::vector<std::string> late;
  for (int r = 0; r < spec_.ranks; ++r) {
    int64_t age;
    const Fingerprint last = board_.read(r, &age);
    if (r == spec_.rank || last.sequence >= request.call.sequence) continue;
    if (*first < 0) *first = r;
    char text[256];
    if (last.sequence == 0)
      std::snprintf(text, sizeof text, "%s has not made this call and none before", rank_name(r).c_str());
    else
      std::snprintf(text, sizeof text, "%s has not made this call; its last was %s, %.1f s ago", rank_name(r).c_str(), call_text(last).c_str(), age * 1e-9);
    late.push_back(text);
  }
  return list(late);
}

std::string Communicator::who_is_missing(const Request& request) const {
  int first = -1;
  std::string text = missing(request, &first);
  const int waits_for = waits_for_.load();
  if (text.empty() && waits_for >= 0) text = "all ranks have made this call; rank " + std::to_string(spec_.rank) + " waits for " + rank_name(waits_for);
  return text;
}

Error Communicator::describe_timeout(const Request& request, int waits_for, double seconds) const {
  const bool message = request.call.collective == Collective::send || request.call.collective == Collective::recv;
  int culprit = -1;
  std::string who = message ? "" : missing(request, &culprit);
  if (culprit < 0) culprit = waits_for;
  if (who.empty()) {
    if (culprit < 0)
      who = "no rank has sent a matching message";
    else if (message)
      who = rank_name(culprit) + (request.call.collective == Collective::send ? " has not received it" : " has not sent it");
    else
      who = "all ranks have made this call, but " + rank_name(culprit) + " does not go on (stopped, or stuck in another call)";
  }
  Error e = blame(Cause::timeout, culprit, request.call, -1);
  std::snprintf(e.text, sizeof e.text, "ringcomm: Timed out after %.1f s on rank %d in %s of group '%s': %s", seconds, spec_.rank, call_text(request.call).c_str(),
                spec_.name.c_str(), who.c_str());
  return e;
}

// The ranks that announced another call than most did under the same number; with no majority, the peer.
Error Communicator::describe_mismatch(const Stall& stall) const {
  const Fingerprint& mine = stall.request->call;
  Error e = blame(Cause::mismatch, stall.waits_for, mine, stall.step);
  if (stall.expected_bytes != stall.sent_bytes) {
    std::snprintf(e.text, sizeof e.text, "ringcomm: sizes differ in group '%s': %s sent a message of %llu bytes, but rank %d receives it into %llu bytes", spec_.name.c_str(),
                  rank_name(stall.waits_for).c_str(), static_cast<unsigned long long>(stall.sent_bytes), spec_.rank, static_cast<unsigned long long>(stall.expected_bytes));
    return e;
  }
  std::map<std::string, std::vector<int>> said;
  for (int r = 0; r < spec_.ranks; ++r) {
    const Fingerprint f = r == spec_.rank ? mine : board_.read(r, nullptr);
    if (f.sequence == mine.sequence) said[call_text(f)].push_back(r);
  }
  const std::vector<int>* most = nullptr;
  for (const auto& [text, ranks] : said)
    if (!most || ranks.size() > most->size()) most = &ranks;
  std::vector<std::string> groups;
  for (const auto& [text, ranks] : said) {
    std::string names;
    for (int r : ranks) names += (names.empty() ? "" : ", ") + rank_name(r);
    groups.push_back(names + (ranks.size() == 1 ? " called " : " called ") + text);
    if (most->size() > ranks.size()) e.rank = ranks.front();
  }
  if (said.size() < 2) {
    int64_t age;
    const Fingerprint theirs = board_.read(stall.waits_for, &age);
    groups = {"rank " + std::to_string(spec_.rank) + " is in " + call_text(mine) + (mine.bytes == 0 ? " with another size for this pair" : "")};
    groups.push_back(rank_name(stall.waits_for) + (theirs.sequence == mine.sequence ? " sends another size" : " sends data of another call (its last was " + call_text(theirs) + ")"));
  }
  if (e.rank >= 0) {
    e.pid = spec_.peers[e.rank].pid;
    std::snprintf(e.host, sizeof e.host, "%s", spec_.peers[e.rank].host.c_str());
  }
  std::snprintf(e.text, sizeof e.text, "ringcomm: ranks disagree on call #%llu of group '%s': %s", static_cast<unsigned long long>(mine.sequence), spec_.name.c_str(),
                list(groups).c_str());
  return e;
}

// A stopped process (SIGSTOP, a debugger) lives but will not read: destroying a group must not wait for it for ever.
bool Communicator::peers_stopped() const {
  for (const PeerInfo& p : spec_.peers) {
    char path[64], text[512] = {};
    std::snprintf(path, sizeof path, "/proc/%d/stat", p.pid);
    FILE* f = std::fopen(path, "re");
    if (!f) continue;
    const size_t n = std::fread(text, 1, sizeof text - 1, f);
    std::fclose(f);
    const std::string all(text, n);
    const size_t state = all.rfind(") ");
    if (state != std::string::npos && state + 2 < n && (all[state + 2] == 'T' || all[state + 2] == 't')) return true;
  }
  return false;
}

}  // namespace ringcomm
