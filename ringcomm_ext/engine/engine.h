// The engine of a process: drives what no caller drives, serves peers, watches them.
//
// Threads: `workers` drivers (parked on a private word while there is nothing for them, else asleep on the doorbell), one poller (epoll: the local
// socket, the peers' pidfds, the timer of drive_soon), and the callback threads. All block every signal.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "connections/fd_exchange.h"
#include "connections/heap.h"
#include "connections/segment.h"
#include "connections/tcp_port.h"
#include "engine/backoff.h"
#include "engine/callbacks.h"
#include "engine/control_plane.h"
#include "engine/peer_process.h"

namespace ringcomm {

class Communicator;
class VerbsNet;
struct VerbsLibrary;
struct VerbsOptions;
using CommunicatorPtr = std::shared_ptr<Communicator>;

struct EngineOptions {
  int workers = 1;
  WaitPolicy driver;
  size_t memory_limit = size_t{1} << 30;
  std::shared_ptr<Heap> heap = nullptr;  // registered memory; null: the engine makes an empty one
};

class Engine {
 public:
  // Starts the threads. Null and `error` if the system refuses what it needs.
  static std::unique_ptr<Engine> start(const EngineOptions& options, Error& error);
  ~Engine();  // stops and joins the threads; used by tests, the process's own engine is never destroyed

  FdServer& server() { return server_; }
  MemoryBudget& budget() { return budget_; }
  Callbacks& callbacks() { return callbacks_; }
  Doorbell& doorbell() { return self_->doorbell(); }
  const std::string& key() const { return self_->key; }
  // Descriptors a peer needs to know this process, in the order of PeerFds.
  std::vector<int> own_fds() const;

  // The process with this key; takes over the descriptors.
  struct PeerFds {
    int doorbell, pidfd, heap;
  };
  std::shared_ptr<PeerProcess> peer(const std::string& key, const PeerFds& fds, Error& error);

  // wires.cpp: what groups over several nodes need. Opens this process's TCP port, once; later calls change nothing. False and `error` if it cannot be.
  bool open_port(const TcpOptions& options, int64_t dead_after_ns, Error& error);
  // The same without a port, for sockets that are brought: tests.
  bool open_loop(int64_t dead_after_ns, Error& error);
  TcpPort* port() const { return port_.get(); }  // null before open_port()
  // This process's RDMA, once, after open_port(); later calls change nothing. False and `error` if a device cannot be used.
  bool open_verbs(const VerbsLibrary& library, const VerbsOptions& options, Error& error);
  VerbsNet* verbs() const { return verbs_.get(); }  // null before open_verbs()
  ControlPlane* control() const { return control_.get(); }
  // A moment for frames to come in, where no event tells. On the poller's own thread it reads them.
  void nap_for_frames(int64_t ns);

  void add(const CommunicatorPtr& group);
  void remove(const Communicator* group);
  // Interpreter exit: every group leaves, no callback runs afterwards.
  void leave_all(int64_t grace_ns);
  bool exiting() const { return exiting_.load(std::memory_order_seq_cst); }
  // In a forked child: lets go of what the parent still serves. Async-signal-safe.
  void close_in_child();
  // A group has work that no caller drives.
  void wake_drivers();
  // The same for small work whose caller most likely waits for it, or issues more, within microseconds: the poller looks a little later, and
  // wakes the drivers only if something is left. A driver woken at once would take the core from that very caller.
  void drive_soon();
  // From here on the boards of all groups are looked at every second: failures are noted by ranks that have nothing pending, too.
  void watch_boards();

 private:
  static constexpr int64_t kSoonNs = 20'000, kLatestNs = 500'000, kYoungNs = 15'000;
  static constexpr int kMostYoungLooks = 6;  // kYoungNs << 5 is about kLatestNs
  Engine(const EngineOptions& options) : options_(options), budget_(options.memory_limit), soon_ns_(kSoonNs) {}
  bool nest_loop();
  void drive(int worker);
  void poll();
  void watch(const std::shared_ptr<PeerProcess>& peer);
  void look_at_peer(uint64_t id);
  void look_after_all();
  void look_at_boards();
  void welcome();
  void answer(uint64_t visitor);
  void show_out(int64_t older_than);
  std::vector<CommunicatorPtr> groups(uint64_t& version);

  const EngineOptions options_;
  MemoryBudget budget_;
  FdServer server_;
  Callbacks callbacks_;
  std::shared_ptr<Heap> heap_;
  std::shared_ptr<PeerProcess> self_;
  int epoll_ = -1, stop_event_ = -1, timer_ = -1;
  // In this order: each is used by those behind it. Made once, before the first group that needs them.
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<TcpPort> port_;
  std::shared_ptr<VerbsNet> verbs_;  // shared, for its type is not known here
  std::unique_ptr<ControlPlane> control_;
  std::mutex opening_;
  std::atomic<std::thread::id> poller_{};
  std::atomic<bool> timer_set_{false};
  std::atomic<bool> watches_boards_{false};
  int64_t next_boards_ = 0;       // the poller's
  std::atomic<int64_t> soon_ns_;  // the poller's; longer while its looks find nothing
  int young_looks_ = 0;           // the poller's: looks in a row that found young work only
  // Who has connected and not asked yet, oldest first; the poller's. Strangers may connect and say nothing, so there are few and none gets old.
  struct Visitor {
    int fd;
    int64_t since;
  };
  std::map<uint64_t, Visitor> visitors_;
  uint64_t next_visitor_ = 0;
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_{false}, exiting_{false};

  std::mutex mutex_;
  std::vector<CommunicatorPtr> groups_;
  std::map<std::string, std::weak_ptr<PeerProcess>> peers_;
  std::map<uint64_t, std::weak_ptr<PeerProcess>> watched_;
  uint64_t next_watch_ = 1;
  std::atomic<uint64_t> version_{1};  // of groups_

  std::atomic<uint32_t> driver_word_{0};
  std::atomic<int> parked_{0};
};

}  // namespace ringcomm
