// The control sockets of a process: one to each process of another node with which it ever shared a group, for as long as both live. docs/control_plane.md.
//
// Of two processes the one with the lower key dials. Whoever is connected says its key first (hello); then frames of all groups that the two share go
// over this one socket. Its end is the other's death.
//
// Threads: frames and ends of sockets on the poller's; everything else from anywhere.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "connections/event_loop.h"
#include "connections/tcp_port.h"
#include "engine/control_group.h"
#include "engine/peer_process.h"

namespace ringcomm {

class ControlPlane {
 public:
  // `key`: of this process. `wake`: a peer has died, whoever waits in this process must look.
  ControlPlane(EventLoop& loop, const std::string& key, int64_t dead_after_ns, std::function<void()> wake);
  ~ControlPlane();

  // From here on: takes in who dials this process, and can dial. The port must outlive it.
  void open(TcpPort& port);
  // A connected, authenticated socket. `dialled`: key of the process it was dialled to, if it was.
  void adopt(int fd, const std::string& dialled = "");

  // The process with this key once there is a socket to it, alive; else null, and it is being dialled if that is this side's part. With `error` set:
  // that has failed (said once; the next call tries anew).
  std::shared_ptr<PeerProcess> reach(const std::string& key, const std::vector<std::string>& addresses,
                                     int64_t deadline_ns, Error& error);

  // Frames of this group's topic go to it, as long as it lives and until leave().
  void enter(const std::shared_ptr<ControlGroup>& group);
  // It has ended on this rank; who asks later is told so.
  void leave(const ControlGroup& group);

  // Waits until the peers' kernels have all that was sent. Before the process exits.
  void settle(int64_t until_ns) const;

 private:
  struct Guest;
  struct Dial {
    TcpPort::DialId id = 0;
    int64_t deadline = 0;  // of who asked for it
    bool failed = false;
    Error error;
  };
  void greeted(const std::shared_ptr<Guest>& guest, const HelloBody& hello);
  void heard(const std::shared_ptr<Guest>& guest, FrameKind kind, const std::string& body);
  void ended(const std::shared_ptr<Guest>& guest, int code);
  void dialled(const std::string& key, int fd, const Error& error);
  void look_for_silence();

  EventLoop& loop_;
  const std::string key_;
  const int64_t dead_after_ns_;  // whole thirds of a second count, not less than 1 s each
  const std::function<void()> wake_;
  TcpPort* port_ = nullptr;
  Nonce topic_{};

  mutable std::mutex mutex_;
  std::set<std::shared_ptr<Guest>> guests_;  // every socket; those that have said who they are have a peer
  EventLoop::TimerId next_look_ = 0;         // for silence, while there are guests
  int64_t looked_at_ = 0;
  std::map<std::string, std::shared_ptr<PeerProcess>> peers_;
  std::map<std::string, Dial> dials_;
  std::map<Nonce, std::weak_ptr<ControlGroup>> groups_;
  std::deque<std::pair<Nonce, int>> ended_;  // topics of groups this process was in, and its rank there; the last few
};

}  // namespace ringcomm
