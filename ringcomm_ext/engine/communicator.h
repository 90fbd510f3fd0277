// One group: rank, connections, programs, decision table, the order of its calls. Owns no thread.
//
// Any thread may call anything. Calls are ordered by the issue lock; each lane and the mailbox are driven by one thread at a time (TryLock).
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "connections/shm.h"
#include "core/program.h"
#include "engine/backoff.h"
#include "engine/board.h"
#include "engine/control_group.h"
#include "engine/engine.h"
#include "engine/lane.h"
#include "engine/mailbox.h"

namespace ringcomm {

// A rule of the policy that holds for this group: sizes are all that is left to compare.
struct Rule {
  uint64_t max_bytes = UINT64_MAX;
  std::string schedule;
  size_t slot = 0;  // bytes a slot is filled to
  int channels = 1;
  std::string source;  // "default.yaml:12"
  bool wide = false;   // 16-bit floats travel as float32
};

struct PeerInfo {
  std::string host;
  int pid = 0;
  int global_rank = -1;  // in the whole job: how users know it
  std::shared_ptr<PeerProcess> process;
  std::shared_ptr<Segment> segment;    // null: it is on another node,
  std::vector<std::string> addresses;  // and its TCP port is here
  int rails = 1;                       // WireGroup::rails
  bool remote() const { return segment == nullptr; }
};

struct GroupSpec {
  std::string name;
  int rank = 0, ranks = 1;
  std::vector<PeerInfo> peers;            // by rank, own included
  Board board;                            // in the segment of this node's leader
  std::shared_ptr<ControlGroup> control;  // null: the group is on one node
  ShmLayout layout;
  bool over_verbs = false;  // between nodes; else TCP
  WaitPolicy caller;
  std::array<std::vector<Rule>, kCollectives> rules;  // by collective; the last of each has no limit
  // Asked now and then while the group is being connected; true: give up. May be empty.
  std::function<bool()> interrupted;
  // The group has failed, here or elsewhere: called once, before anybody in this process sees it. May be empty.
  std::function<void()> on_failure;
  // The packed program of (collective, schedule, root), or a sentence in `error`. Called without any lock held.
  std::function<std::vector<int32_t>(Collective, const std::string& schedule, int root, std::string& error)> build;
};

// What a caller asks for. Buffers: all_reduce, broadcast, reduce and barrier give one Chunk in `in` and/or `out` (the communicator cuts it up); the others give
// what docs/program.md says.
struct Call {
  Collective collective = Collective::barrier;
  DType dtype = DType::other;
  size_t element = 1;
  ReduceOp op = ReduceOp::none;
  int root = -1;
  std::vector<Chunk> in, out;
  bool widened = false;  // the chunks hold float32; dtype, element and bytes still tell of the caller's 16-bit floats
  uint64_t bytes = 0;    // whole message
  bool uniform = true;   // every rank knows `bytes`; else the policy ignores sizes and every pair checks its own
  int64_t deadline_ns = kNoDeadline;
  bool caller_waits = false;             // the caller goes straight to wait(): no driver is woken
  std::shared_ptr<void> keep;            // owns the buffers; released with the request
  const FlightShapes* shapes = nullptr;  // for the flight record, read during start(); null: the chunks' element counts
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(Engine& engine, GroupSpec spec);
  ~Communicator();

  // Whether the rule for this call wants its 16-bit floats widened; it counts the caller's bytes, so it is the rule either way.
  bool travels_wide(const Call& call) const;
  // The rule of the policy for this call. Its collective must have rules.
  const Rule& rule(const Call& call) const;
  // Starts a collective. On a mistake of ours (no rule, no program) returns null and a sentence in `error`.
  RequestPtr start(const Call& call, std::string& error);
  // `shapes`: as in Call.
  RequestPtr send(const void* data, size_t bytes, int peer, int tag, int64_t deadline_ns, std::shared_ptr<void> keep,
                  const FlightShapes* shapes = nullptr);
  RequestPtr recv(void* data, size_t bytes, int peer, int tag, int64_t deadline_ns, std::shared_ptr<void> keep,
                  const FlightShapes* shapes = nullptr);

  // Waits for the request, driving the group meanwhile. False: `until_ns` passed, or `interrupted()` said so; the request goes on.
  // `interrupted` is asked about every 200 ms and after every signal.
  bool wait(Request& request, int64_t until_ns, const std::function<bool()>& interrupted);

  // Drives everything once. True if something moved. Any thread.
  bool advance();
  bool wants_driver(int worker) const;
  void look_at_deadlines(int64_t now);
  int64_t last_left_ns() const { return last_left_ns_.load(std::memory_order_relaxed); }

  void abort(const std::string& reason);
  // Orderly end, for good: until then (now_ns() time) pending calls may end; sends that are owed are waited for as long as their
  // peers live and run. What is pending afterwards, or comes later, ends as aborted. Waits for nothing if `until_ns` has passed and nothing is owed.
  void leave(int64_t until_ns, bool owes_sends);
  void let_end(int64_t until_ns, bool owes_sends);  // the waiting part of it
  bool failed(Error& error) const;
  // Ends the group, here and on the other ranks, for a reason found outside of it: on a device.
  void fail(Error error);
  // As errors call it: number in the job, host, pid.
  std::string rank_name(int rank) const;
  // Who has not made this call, in words: for a wait that ran out of time.
  std::string who_is_missing(const Request& request) const;
  // Returns when every rank has called it. "" then; else the sentence that says who did not come, on every rank that did; the group stays as it was.
  // `wait_all`: ranks that are gone do not end it before the time is up. `interrupted` as in wait(); then the text means nothing.
  std::string monitored_barrier(int64_t timeout_ns, bool wait_all, const std::function<bool()>& interrupted);

  // Calls made from here on are recorded. `description`: the user's own name of the group.
  void enter_record(const std::string& description);
  // Notes a failure that this rank, with nothing pending, would not notice.
  void look_at_board();

  uint64_t sequence() const { return sequence_.load(); }
  void set_sequence(uint64_t s) { sequence_.store(s); }
  const GroupSpec& spec() const { return spec_; }
  const char* connection_kind() const { return connections_->kind(); }

 private:
  struct Bound {  // a program with its connections on one channel
    std::shared_ptr<const Program> program;
    std::vector<Sender*> senders;
    std::vector<Receiver*> receivers;
  };
  std::unique_ptr<Connections> make_connections() const;
  std::shared_ptr<const Program> program(const Call& call, const Rule& rule, std::string& error);
  std::string too_small(const Program& program, size_t slot) const;
  const Bound* bound(const std::shared_ptr<const Program>& program, int channel);
  Run make_run(const Call& call, const Rule& rule, const Bound& bound, int channel, int channels, uint32_t tag) const;
  void log_choice(const Call& call, const Rule& rule);
  void queue(Request& request, uint64_t bytes);
  void issued(const Request& request, bool caller_waits);
  RequestPtr post(Message message, Collective kind, int64_t deadline_ns, std::shared_ptr<void> keep,
                  const FlightShapes* shapes);
  void spoil(Request& request) const;
  void deliver(Ended& ended);
  void settle(const Stall& stall, Ended& ended);
  void post_failure(Error& error);
  void end_all(Ended& ended);
  bool gone(int rank) const;
  bool lost(int rank);
  int pending() const { return pending_.load(std::memory_order_seq_cst); }

  void look_at_ranks(int64_t now);

  // monitored.cpp
  std::string await_verdict(uint32_t number, int64_t until_ns, bool wait_all, const std::function<bool()>& interrupted);
  void ring_all() const;
  bool conclude(uint32_t number, bool all_came, int64_t* asked_ns);
  bool hopeless(const std::vector<int>& absent, bool wait_all) const;
  std::string came_late(uint32_t number) const;
  std::string who_missed(uint32_t number, const std::vector<int>& missed, int64_t waited_ns, bool wait_all) const;
  std::string whereabouts(int rank) const;
  // notes.cpp
  void leave_record();
  void record(const Call& call, Request& request);
  void record(const Message& message, const FlightShapes* shapes, Request& request);
  void log_issue(const Request& request, const Rule* rule) const;
  void log_end(const Request& request) const;
  void note_failure();

  // report.cpp
  Error blame(Cause cause, int culprit, const Fingerprint& call, int step) const;
  void accuse(Error& error, int culprit) const;
  bool stopped(int rank) const;
  const char* stopped_text(int rank) const;
  bool peers_stopped() const;
  int deserter(const Request& request);
  const char* loss_text(int rank) const;
  Error describe_loss(int culprit, const Request& request, int step) const;
  Error describe_timeout(const Request& request, double seconds) const;
  int shown(int rank) const;
  std::vector<int> all_shown(std::vector<int> ranks) const;
  std::string call_text(const Fingerprint& call) const;
  std::string rank_names(const std::vector<int>& ranks) const;
  std::string missing(const Request& request, int* first) const;
  std::string who_does_not_go_on(const Request& request, int culprit) const;

  // disagreement.cpp
  using Sides = std::vector<std::pair<std::string, std::vector<int>>>;  // what was called, by which ranks
  Sides sides(uint64_t sequence) const;
  bool disagreement(const Request& request, int peer, Error& error) const;
  bool describe_sizes(const Stall& stall, Error& error) const;
  void await_announcements(uint64_t sequence) const;
  void ask_others() const;
  void hear_others() const;
  Error describe_mismatch(const Stall& stall) const;

  Engine& engine_;
  GroupSpec spec_;
  Board board_;
  RollCall roll_;
  const std::shared_ptr<ControlGroup> control_;  // null: the group is on one node
  std::mutex meeting_;                           // held by the thread that is in a monitored barrier
  std::unique_ptr<Connections> connections_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<Mailbox> mailbox_;

  std::mutex issue_;  // order of calls, programs, bindings
  std::map<std::tuple<Collective, std::string, int>, std::shared_ptr<const Program>> programs_;
  std::map<std::pair<const Program*, int>, std::unique_ptr<Bound>> bounds_;
  std::array<uint64_t, kCollectives> logged_{};  // a bit per power of two of bytes
  std::atomic<uint64_t> sequence_{0}, messages_{0};
  std::atomic<int> flight_group_{-1};
  std::atomic<int64_t> last_left_ns_{0};  // when the last small call was left to the poller's look
  std::atomic<int> large_{0};             // pending calls that async callers leave to the driver
  std::atomic<int> waits_for_{-1};        // the rank a stalled collective last waited for: for reports
  std::atomic<int64_t> next_look_{0};     // when deadlines and boards are due to be looked at

  // lost(), of ranks on other nodes: when each was first found gone, and when anything last moved after one was.
  std::vector<std::atomic<int64_t>> gone_since_;
  std::atomic<bool> any_gone_{false};
  std::atomic<int64_t> last_moved_{0};

  std::atomic<int> pending_{0}, waiters_{0};
  std::atomic<bool> failed_{false};
  std::once_flag failure_noted_;
  mutable std::mutex error_mutex_;
  Error error_;
};

}  // namespace ringcomm
