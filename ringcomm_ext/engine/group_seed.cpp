#include "engine/group_seed.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace ringcomm {
namespace {

const char* const kBoard = "the board of a group";

// The lowest rank of a rank's node.
int leader_of(const std::vector<PeerCard>& cards, int rank) {
  const auto same = [&](const PeerCard& c) { return c.node == cards[rank].node; };
  return static_cast<int>(std::find_if(cards.begin(), cards.end(), same) - cards.begin());
}

// The others may have counted this rank in already: they must not wait for its calls.
bool give_up(GroupSpec& spec, Error& error) {
  if (!error) {
    error.cause = Cause::aborted;
    std::snprintf(error.text, sizeof error.text, "ringcomm: interrupted while a group was being connected");
  }
  // Ranks that this one cannot reach hear of it from those that both can.
  if (spec.board.post(error) && spec.control) spec.control->tell_failure(error);
  spec.board.set_state(RankState::left);
  if (spec.control) spec.control->tell();
  return false;
}

}  // namespace

std::unique_ptr<GroupSeed> GroupSeed::make(Engine& engine, int rank, const ShmLayout& layout, Error& error) {
  ShmLayout with_board = layout;
  with_board.board_bytes = Board::bytes(layout.ranks);
  std::unique_ptr<GroupSeed> seed(new GroupSeed(engine, rank, with_board));
  seed->segment_ = Segment::create(with_board.bytes(), error);
  if (!seed->segment_ ||
      !seed->segment_->commit(0, layout.header_bytes(), engine.budget(), "the control lines of a group", error))
    return nullptr;
  std::vector<int> fds = engine.own_fds();
  fds.insert(fds.begin(), seed->segment_->fd());
  engine.server().offer(seed->nonce_, std::move(fds));
  return seed;
}

GroupSeed::~GroupSeed() { engine_.server().withdraw(nonce_); }

PeerCard GroupSeed::card() const {
  PeerCard card;
  card.socket = engine_.server().address();
  card.nonce = to_hex(nonce_);
  card.process = engine_.key();
  card.pid = static_cast<int>(getpid());
  return card;
}

// ---------------------------------------------------------------------------------------------------------------- this node

bool GroupSeed::open_peer(const PeerCard& card, int peer, int leader, int64_t deadline_ns, GroupSpec& spec,
                          Error& error) {
  PeerInfo& info = spec.peers[peer];
  if (peer == rank_) {
    info.segment = segment_;
    const std::vector<int> own = engine_.own_fds();
    info.process = engine_.peer(engine_.key(), {dup(own[0]), dup(own[1]), dup(own[2])}, error);
    return info.process != nullptr;
  }
  Nonce nonce;
  if (!from_hex(card.nonce, nonce)) {
    error.cause = Cause::internal;
    std::snprintf(error.text, sizeof error.text, "ringcomm: the card of rank %d has a broken nonce", peer);
    return false;
  }
  std::vector<int> fds;
  if (!fetch_fds(card.socket, nonce, deadline_ns, spec.interrupted, fds, error)) {
    const std::string why = error.text;
    const bool own = error.cause == Cause::internal;
    error.rank = own ? rank_ : peer;
    std::snprintf(error.text, sizeof error.text,
                  "ringcomm: rank %d cannot reach rank %d (host %s, pid %d) over shared memory: %s%s",
                  spec.peers[rank_].global_rank, info.global_rank, card.host.c_str(), card.pid, why.c_str(),
                  own ? ": this rank's own limit (ulimit -n)"
                      : ". Ranks of one node must run on one machine, in one network namespace, and be alive");
    return false;
  }
  constexpr size_t expected = 4;
  if (fds.size() != expected) {
    for (int fd : fds) close(fd);
    error.cause = Cause::internal;
    std::snprintf(error.text, sizeof error.text,
                  "ringcomm: rank %d passed %zu descriptors, not %zu: do all ranks run the same version?", peer,
                  fds.size(), expected);
    return false;
  }
  info.process = engine_.peer(card.process, {fds[1], fds[2], fds[3]}, error);
  // It may not have come to this itself; what this rank writes there must not fail for want of memory.
  if (peer == leader && !Segment::commit_shared(fds[0], layout_.board_at(), layout_.board_bytes, kBoard, error)) {
    close(fds[0]);
    return false;
  }
  info.segment = Segment::open(fds[0], error);
  return info.process && info.segment;
}

bool GroupSeed::open_node(const std::vector<PeerCard>& cards, int64_t deadline_ns, GroupSpec& spec, Error& error) {
  const int leader = leader_of(cards, rank_);
  if (rank_ == leader && !segment_->commit(layout_.board_at(), layout_.board_bytes, engine_.budget(), kBoard, error))
    return false;
  std::vector<bool> remote;
  for (const PeerCard& c : cards) remote.push_back(c.node != cards[rank_].node);
  if (!std::count(remote.begin(), remote.end(), true)) remote.clear();
  for (size_t peer = 0; peer < cards.size(); ++peer) {
    if (cards[peer].node != cards[rank_].node) continue;
    const bool opened = open_peer(cards[peer], static_cast<int>(peer), leader, deadline_ns, spec, error);
    if (!opened && static_cast<int>(peer) <= leader) return false;
    // The leader is the first, so from here on the others hear why this rank gives up.
    if (static_cast<int>(peer) == leader)
      spec.board = Board(spec.peers[leader].segment->data() + layout_.board_at(), layout_.ranks, rank_, remote);
    if (!opened) return give_up(spec, error);
  }
  return true;
}

// ---------------------------------------------------------------------------------------------------------------- other nodes

namespace {

constexpr int64_t kQuestionNs = 100'000'000;  // between looks at Ctrl-C

// A wait of connect(): naps that grow, and now and then the questions whether it is still of use.
class Patience {
 public:
  Patience(GroupSpec& spec, int64_t deadline_ns) : spec_(spec), deadline_ns_(deadline_ns) {}
  bool over() const { return now_ns() >= deadline_ns_; }
  // False, with `error` where there is one: interrupted, or the group has failed on another rank.
  bool nap(Error& error) {
    if (now_ns() >= next_question_) {
      next_question_ = now_ns() + kQuestionNs;
      if (spec_.interrupted && spec_.interrupted()) return false;
      if (spec_.control) {
        spec_.control->ask();
      }
      if (spec_.board.read_error(error)) return false;
    }
    const timespec nap{0, nap_ns_};
    nanosleep(&nap, nullptr);
    nap_ns_ = std::min<int64_t>(2 * nap_ns_, 1'000'000);
    return true;
  }

 private:
  GroupSpec& spec_;
  const int64_t deadline_ns_;
  int64_t next_question_ = now_ns() + kQuestionNs;
  int64_t nap_ns_ = 20'000;  // guessed; a waiting rank must leave the core to those that are not there yet
};

void blame(Error& error, Cause cause, const GroupSpec& spec, int peer, const char* what) {
  const PeerInfo& p = spec.peers[peer];
  error.cause = cause;
  error.rank = peer;
  error.pid = p.pid;
  std::snprintf(error.host, sizeof error.host, "%s", p.host.c_str());
  std::snprintf(error.text, sizeof error.text, "ringcomm: group '%s': rank %d (host %s, pid %d) %s", spec.name.c_str(),
                p.global_rank, p.host.c_str(), p.pid, what);
}

}  // namespace

bool GroupSeed::make_control(const std::vector<PeerCard>& cards, GroupSpec& spec, Error& error) {
  Nonce topic;
  if (engine_.control() == nullptr || !from_hex(cards[0].nonce, topic)) {
    error.cause = Cause::internal;
    std::snprintf(error.text, sizeof error.text,
                  "ringcomm: group '%s' spans nodes, but this process has no TCP port for that", spec.name.c_str());
    return false;
  }
  Engine* const engine = &engine_;
  spec.control = std::make_shared<ControlGroup>(topic, rank_, layout_.ranks, spec.board,
                                                spec.peers[leader_of(cards, rank_)].segment, [engine] {
                                                  engine->doorbell().ring_always();
                                                  engine->wake_drivers();
                                                });
  for (int r = 0; r < layout_.ranks; ++r)
    if (spec.peers[r].process) spec.control->join(r, spec.peers[r].process);
  // Before the first socket is there: nothing that is said about it from here on is lost but what comes before; that is asked for.
  engine_.control()->enter(spec.control);
  return true;
}

bool GroupSeed::open_links(const std::vector<PeerCard>& cards, int64_t deadline_ns, GroupSpec& spec, Error& error) {
  Patience patience(spec, deadline_ns);
  while (true) {
    int missing = -1;
    for (int r = 0; r < layout_.ranks; ++r) {
      PeerInfo& info = spec.peers[r];
      if (info.process) continue;
      Error why;
      info.process = engine_.control()->reach(cards[r].process, cards[r].addresses, deadline_ns, why);
      if (info.process) {
        spec.control->join(r, info.process);
        continue;
      }
      if (missing < 0) missing = r;
      if (!why) continue;
      char text[480];
      std::snprintf(text, sizeof text, "cannot be reached over tcp from rank %d: %.400s", spec.peers[rank_].global_rank,
                    why.text);
      blame(error, why.cause, spec, r, text);
      return give_up(spec, error);
    }
    if (missing < 0) return true;
    if (patience.over()) {
      blame(error, Cause::timeout, spec, missing, "did not connect over tcp in time: the timeout passed");
      return give_up(spec, error);
    }
    if (!patience.nap(error)) return give_up(spec, error);
  }
}

// Each rank says on the board, and to the other nodes, that it has what it needs from all others, and waits until all have said so.
bool GroupSeed::all_connected(GroupSpec& spec, int64_t deadline_ns, Error& error) {
  Board& board = spec.board;
  board.set_state(RankState::present);
  if (spec.control) spec.control->tell(), spec.control->ask();
  Patience patience(spec, deadline_ns);
  for (int peer = 0; peer < spec.ranks;) {
    const bool dead = spec.peers[peer].process->dead.load();  // before its state: it may connect, then end
    if (board.state(peer) != RankState::absent) {
      ++peer;
      continue;
    }
    if (dead || patience.over()) {
      blame(error, dead ? Cause::peer_died : Cause::timeout, spec, peer,
            dead ? "died before it was connected to all ranks"
                 : "did not answer in time: the timeout passed before it was connected to all ranks");
      return give_up(spec, error);
    }
    if (!patience.nap(error)) return give_up(spec, error);
  }
  return true;
}

CommunicatorPtr GroupSeed::connect(GroupSpec spec, const std::vector<PeerCard>& cards, int64_t deadline_ns,
                                   Error& error) {
  spec.rank = rank_;
  spec.ranks = layout_.ranks;
  spec.layout = layout_;
  spec.peers.resize(cards.size());
  bool across = false;
  for (size_t peer = 0; peer < cards.size(); ++peer) {
    const PeerCard& card = cards[peer];
    PeerInfo& info = spec.peers[peer];
    info.host = card.host;
    info.pid = card.pid;
    info.global_rank = card.global_rank < 0 ? static_cast<int>(peer) : card.global_rank;
    if (card.node == cards[rank_].node) continue;
    info.addresses = card.addresses;
    info.rails = card.rails;
    across = true;
  }
  if (!open_node(cards, deadline_ns, spec, error)) return nullptr;
  if (across && !make_control(cards, spec, error)) return nullptr;
  if ((across && !open_links(cards, deadline_ns, spec, error)) || !all_connected(spec, deadline_ns, error)) {
    if (spec.control) engine_.control()->leave(*spec.control);
    return nullptr;
  }
  spec.interrupted = nullptr;  // it belongs to this call
  auto group = std::make_shared<Communicator>(engine_, std::move(spec));
  engine_.add(group);
  return group;
}

}  // namespace ringcomm
