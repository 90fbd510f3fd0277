#include "engine/group_seed.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace ringcomm {

std::unique_ptr<GroupSeed> GroupSeed::make(Engine& engine, int rank, const ShmLayout& layout, Error& error) {
  std::unique_ptr<GroupSeed> seed(new GroupSeed(engine, rank, layout));
  seed->segment_ = Segment::create(layout.bytes(), error);
  if (!seed->segment_ ||
      !seed->segment_->commit(0, layout.header_bytes(), engine.budget(), "the control lines of a group", error))
    return nullptr;
  std::vector<int> fds = engine.own_fds();
  fds.insert(fds.begin(), seed->segment_->fd());
  if (rank == 0) {
    seed->board_ = Segment::create(Board::bytes(layout.ranks), error);
    if (!seed->board_ ||
        !seed->board_->commit(0, Board::bytes(layout.ranks), engine.budget(), "the board of a group", error))
      return nullptr;
    fds.push_back(seed->board_->fd());
  }
  engine.server().offer(seed->nonce_, std::move(fds));
  return seed;
}

GroupSeed::~GroupSeed() { engine_.server().withdraw(nonce_); }

PeerCard GroupSeed::card() const {
  return {engine_.server().address(), to_hex(nonce_), engine_.key(), "", static_cast<int>(getpid())};
}

bool GroupSeed::open_peer(const PeerCard& card, int peer, int64_t deadline_ns, GroupSpec& spec, Error& error) {
  PeerInfo& info = spec.peers[peer];
  info.host = card.host;
  info.pid = card.pid;
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
    error.rank = peer;
    std::snprintf(error.text, sizeof error.text,
                  "ringcomm: rank %d cannot reach rank %d (host %s, pid %d) over shared memory: %s. Ranks must run on "
                  "one machine, in one network namespace, and be "
                  "alive",
                  spec.peers[rank_].global_rank, info.global_rank, card.host.c_str(), card.pid, why.c_str());
    return false;
  }
  const size_t expected = peer == 0 ? 5 : 4;
  if (fds.size() != expected) {
    for (int fd : fds) close(fd);
    error.cause = Cause::internal;
    std::snprintf(error.text, sizeof error.text,
                  "ringcomm: rank %d passed %zu descriptors, not %zu: do all ranks run the same version?", peer,
                  fds.size(), expected);
    return false;
  }
  info.process = engine_.peer(card.process, {fds[1], fds[2], fds[3]}, error);
  info.segment = Segment::open(fds[0], error);
  if (peer == 0) spec.board = Segment::open(fds[4], error);
  return info.process && info.segment && (peer != 0 || spec.board);
}

namespace {

constexpr int64_t kQuestionNs = 100'000'000;  // between looks at Ctrl-C

// The others may have counted this rank in already: they must not wait for its calls.
bool give_up(Board& board, Error& error) {
  board.set_state(RankState::left);
  if (!error) {
    error.cause = Cause::aborted;
    std::snprintf(error.text, sizeof error.text, "ringcomm: interrupted while a group was being connected");
  }
  return false;
}

}  // namespace

// Each rank says on the board that it has what it needs from all others, and waits until all have said so.
bool GroupSeed::all_connected(const GroupSpec& spec, int64_t deadline_ns, Error& error) const {
  Board board(spec.board->data(), spec.ranks, rank_);
  board.set_state(RankState::present);
  int64_t next_question = now_ns() + kQuestionNs;
  int64_t nap_ns = 20'000;  // guessed; a waiting rank must leave the core to those that are not there yet
  for (int peer = 0; peer < spec.ranks;) {
    const bool dead = spec.peers[peer].process->dead.load();  // before its state: it may connect, then end
    if (board.state(peer) != RankState::absent) {
      ++peer;
      continue;
    }
    if (dead || now_ns() >= deadline_ns) {
      error.cause = dead ? Cause::peer_died : Cause::timeout;
      error.rank = peer;
      error.pid = spec.peers[peer].pid;
      std::snprintf(error.text, sizeof error.text,
                    "ringcomm: group '%s': rank %d (host %s, pid %d) %s before it was connected to all ranks",
                    spec.name.c_str(), spec.peers[peer].global_rank, spec.peers[peer].host.c_str(),
                    spec.peers[peer].pid, dead ? "died" : "did not answer in time: the timeout passed");
      return give_up(board, error);
    }
    if (spec.interrupted && now_ns() >= next_question) {
      next_question = now_ns() + kQuestionNs;
      if (spec.interrupted()) return give_up(board, error);
    }
    const timespec nap{0, nap_ns};
    nanosleep(&nap, nullptr);
    nap_ns = std::min<int64_t>(2 * nap_ns, 1'000'000);
  }
  return true;
}

CommunicatorPtr GroupSeed::connect(GroupSpec spec, const std::vector<PeerCard>& cards, int64_t deadline_ns,
                                   Error& error) {
  spec.rank = rank_;
  spec.ranks = layout_.ranks;
  spec.layout = layout_;
  spec.board = board_;
  spec.peers.resize(cards.size());
  for (size_t peer = 0; peer < cards.size(); ++peer)
    spec.peers[peer].global_rank = cards[peer].global_rank < 0 ? static_cast<int>(peer) : cards[peer].global_rank;
  for (size_t peer = 0; peer < cards.size(); ++peer)
    if (!open_peer(cards[peer], static_cast<int>(peer), deadline_ns, spec, error)) return nullptr;
  if (!all_connected(spec, deadline_ns, error)) return nullptr;
  spec.interrupted = nullptr;  // it belongs to this call
  auto group = std::make_shared<Communicator>(engine_, std::move(spec));
  engine_.add(group);
  return group;
}

}  // namespace ringcomm
