// A rank's part in a group that spans nodes: it tells the ranks of other nodes what its own node reads on the board, and writes down what they say.
//
//   its state, its last calls, the monitored barrier it came to     report    when the state changes, at each monitored barrier, and as an answer
//   "what have you to say?"                                          ask       while this rank waits; one at a time to each rank
//   why the group has failed                                         failure   once, by who failed it; and as an answer
//   "this is why it has failed; is it?"                              propose    to one rank, whose board decides (Communicator::post_failure)
//   the verdict of a monitored barrier; "give it up"                 verdict, give_up     (monitored.cpp)
//
// Nothing is told that nobody waits for: a call costs no frame. A rank that does not answer is stopped, or far behind; that it is dead is the control
// socket's news.
//
// Threads: take() on the poller's; everything else from anywhere.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/board.h"
#include "engine/control_frames.h"
#include "engine/peer_process.h"

namespace ringcomm {

class ControlGroup {
 public:
  // `keep` owns the board's memory: a frame may be under way when the group is gone. `wake`: whoever waits in this process must look again.
  ControlGroup(const Nonce& topic, int rank, int ranks, Board board, std::shared_ptr<void> keep,
               std::function<void()> wake);
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  const Nonce& topic() const { return topic_; }
  int rank() const { return rank_; }
  Board& board() { return board_; }

  // The process of a rank, on this node or another; while the group is being connected.
  void join(int rank, std::shared_ptr<PeerProcess> process);

  void tell() const;
  void tell_failure(const Error& error) const;
  void propose(int judge, const Error& error) const;
  void tell_verdict() const;
  void ask_to_give_up(uint32_t number) const;  // asks rank 0

  // Asks every rank of other nodes that does not owe an answer and is not gone; not more often than is useful, unless `at_once`.
  void ask(bool at_once = false);
  // Nobody who lives owes an answer, but those that are silent.
  bool answered() const;
  // It has owed one for so long that its process must be stopped, or cannot be reached.
  bool silent(int rank) const;

  // A frame about this group, from a process of another node. False: it is none that this process may send.
  bool take(FrameKind kind, const std::string& body, const PeerProcess& from);

 private:
  struct Question {
    std::atomic<int64_t> since{0};  // 0: none is open
  };
  std::shared_ptr<PeerProcess> process(int rank) const;
  template <typename Do>
  void each_remote(Do&& act) const;
  ReportBody own_report() const;
  bool owes(int rank) const;
  void take_report(const ReportBody& report);
  void take_verdict(const RollBody& roll, const std::string& body);
  void ring_node() const;

  const Nonce topic_;
  const int rank_, ranks_;
  Board board_;
  const std::shared_ptr<void> keep_;
  const std::function<void()> wake_;
  std::vector<Question> questions_;
  std::atomic<int64_t> next_ask_{0};
  mutable std::mutex mutex_;  // processes_
  std::vector<std::shared_ptr<PeerProcess>> processes_;
};

}  // namespace ringcomm
