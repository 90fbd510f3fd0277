#include "engine/control_group.h"

#include <algorithm>
#include <utility>

namespace ringcomm {
namespace {

constexpr int64_t kAskNs = 90'000'000;  // those who wait look every 100 ms
constexpr int64_t kAskPerRankNs =
    1'000'000;  // guessed: 1000 frames a second from a rank of a large group that stands still
constexpr int64_t kSilentNs =
    400'000'000;  // guessed: a poller answers within milliseconds, on a crowded machine within tens

CallBody packed(const Fingerprint& f, int64_t age_ns) {
  return {f.sequence, f.bytes, age_ns, f.what(), f.root, f.schedule, 0};
}

Fingerprint unpacked(const CallBody& c) {
  Fingerprint f;
  f.set_what(c.what);
  f.root = c.root;
  f.sequence = c.sequence;
  f.bytes = c.bytes;
  f.schedule = c.schedule;
  return f;
}

}  // namespace

ControlGroup::ControlGroup(const Nonce& topic, int rank, int ranks, Board board, std::shared_ptr<void> keep,
                           std::function<void()> wake)
    : topic_(topic),
      rank_(rank),
      ranks_(ranks),
      board_(std::move(board)),
      keep_(std::move(keep)),
      wake_(std::move(wake)),
      questions_(static_cast<size_t>(ranks)),
      processes_(static_cast<size_t>(ranks)) {}

void ControlGroup::join(int rank, std::shared_ptr<PeerProcess> process) {
  const std::lock_guard<std::mutex> hold(mutex_);
  processes_[rank] = std::move(process);
}

std::shared_ptr<PeerProcess> ControlGroup::process(int rank) const {
  const std::lock_guard<std::mutex> hold(mutex_);
  return rank >= 0 && rank < ranks_ ? processes_[rank] : nullptr;
}

template <typename Do>
void ControlGroup::each_remote(Do&& act) const {
  for (int r = 0; r < ranks_; ++r)
    if (const auto p = process(r); p && p->remote() && !p->dead.load()) act(r, *p->link);
}

// ---------------------------------------------------------------------------------------------------------------- telling

ReportBody ControlGroup::own_report() const {
  ReportBody report{topic_, rank_, board_.state(rank_), board_.roll_call().came(rank_), 0, {}};
  Fingerprint f[Board::kCalls];
  int64_t age_ns[Board::kCalls];
  report.calls = static_cast<uint32_t>(board_.calls(f, age_ns));
  for (uint32_t i = 0; i < report.calls; ++i) report.call[i] = packed(f[i], age_ns[i]);
  return report;
}

void ControlGroup::tell() const {
  const ReportBody report = own_report();
  each_remote([&](int, ControlLink& link) { link.send(FrameKind::report, report); });
}

void ControlGroup::tell_failure(const Error& error) const {
  const FailureBody failure{topic_, rank_, error};
  each_remote([&](int, ControlLink& link) { link.send(FrameKind::failure, failure); });
}

void ControlGroup::propose(int judge, const Error& error) const {
  if (const auto p = process(judge); p && p->remote())
    p->link->send(FrameKind::propose, FailureBody{topic_, rank_, error});
}

void ControlGroup::tell_verdict() const {
  const RollCall roll = board_.roll_call();
  std::vector<uint32_t> words;
  const RollBody head{topic_, rank_, 0, roll.words(words)};
  std::string body(reinterpret_cast<const char*>(&head), sizeof head);
  body.append(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t));
  each_remote([&](int, ControlLink& link) { link.send(FrameKind::verdict, body.data(), body.size()); });
}

void ControlGroup::ask_to_give_up(uint32_t number) const {
  if (const auto p = process(0); p && p->remote())
    p->link->send(FrameKind::give_up, RollBody{topic_, rank_, number, 0});
}

// ---------------------------------------------------------------------------------------------------------------- asking

bool ControlGroup::owes(int rank) const {
  return questions_[rank].since.load() != 0 && board_.state(rank) != RankState::left;
}

void ControlGroup::ask(bool at_once) {
  const int64_t now = now_ns();
  int64_t due = next_ask_.load();
  if ((now < due && !at_once) ||
      !next_ask_.compare_exchange_strong(due, now + std::max(kAskNs, kAskPerRankNs * ranks_)))
    return;
  const AskBody question{topic_, rank_};
  each_remote([&](int r, ControlLink& link) {
    int64_t none = 0;
    // One at a time: what a stopped process does not read must not fill its socket, or it would pass for dead.
    if (board_.state(r) != RankState::left && questions_[r].since.compare_exchange_strong(none, now))
      link.send(FrameKind::ask, question);
  });
}

bool ControlGroup::answered() const {
  bool all = true;
  each_remote([&](int r, ControlLink&) { all = all && (!owes(r) || silent(r)); });
  return all;
}

bool ControlGroup::silent(int rank) const {
  const auto p = process(rank);
  return p && p->remote() && !p->dead.load() && owes(rank) && now_ns() - questions_[rank].since.load() > kSilentNs;
}

// ---------------------------------------------------------------------------------------------------------------- hearing

void ControlGroup::ring_node() const {
  for (int r = 0; r < ranks_; ++r)
    if (const auto p = process(r)) p->ring_always();
  wake_();
}

bool ControlGroup::take(FrameKind kind, const std::string& body, const PeerProcess& from) {
  const auto speaks_for = [&](int rank) {
    const auto p = process(rank);
    return p && p->key == from.key;
  };
  if (ReportBody report; kind == FrameKind::report && unpack(body, report)) {
    if (speaks_for(report.rank)) take_report(report);  // else a rank that is not connected yet here: it is asked later
    return true;
  }
  if (AskBody question; kind == FrameKind::ask && unpack(body, question)) {
    from.link->send(FrameKind::report, own_report());
    // Who failed it may have died before it had told everybody.
    if (Error error; board_.read_error(error)) from.link->send(FrameKind::failure, FailureBody{topic_, rank_, error});
    return true;
  }
  if (FailureBody failure; (kind == FrameKind::failure || kind == FrameKind::propose) && unpack(body, failure)) {
    failure.error.host[sizeof failure.error.host - 1] = 0;
    failure.error.text[sizeof failure.error.text - 1] = 0;
    const bool is_first = failure.error && board_.post(failure.error);
    if (is_first) ring_node();
    if (kind == FrameKind::propose) {
      if (is_first)
        tell_failure(failure.error);
      else if (Error error; board_.read_error(error))
        from.link->send(FrameKind::failure, FailureBody{topic_, rank_, error});
    }
    return true;
  }
  if (RollBody roll; (kind == FrameKind::verdict || kind == FrameKind::give_up) && unpack(body, roll, true)) {
    if (kind == FrameKind::give_up) {
      board_.roll_call().give_up(roll.number);
      tell_verdict();
      ring_node();
    } else if (body.size() == sizeof roll + 2 * sizeof(uint32_t) * static_cast<size_t>(ranks_)) {
      take_verdict(roll, body);
    }
    return true;
  }
  return false;
}

// The calls before the state: who sees that it has left sees its last call too.
void ControlGroup::take_report(const ReportBody& report) {
  const int r = report.rank;
  for (uint32_t i = 0; i < std::min<uint32_t>(report.calls, Board::kCalls); ++i)
    board_.mirror_call(r, unpacked(report.call[i]), report.call[i].age_ns);
  const bool came = board_.roll_call().note_came(r, report.came);
  const bool changed = board_.state(r) != report.state;
  board_.mirror_state(r, report.state);
  questions_[r].since.store(0);
  if (came || changed) wake_();
}

void ControlGroup::take_verdict(const RollBody& roll, const std::string& body) {
  std::vector<uint32_t> words(2 * static_cast<size_t>(ranks_));
  std::memcpy(words.data(), body.data() + sizeof roll, words.size() * sizeof(uint32_t));
  board_.roll_call().adopt(roll.word, words);
  ring_node();
}

}  // namespace ringcomm
