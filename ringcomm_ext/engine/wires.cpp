// What an engine has besides where its groups span nodes: a loop for wires in its poller, a TCP port, control sockets, RDMA.
#include <cerrno>
#include <cstring>
#include <ctime>

#include "connections/verbs_net.h"
#include "engine/engine.h"

namespace ringcomm {

bool Engine::open_loop(int64_t dead_after_ns, Error& error) {
  const std::lock_guard<std::mutex> hold(opening_);
  if (control_) return true;
  loop_ = EventLoop::open(error);
  if (!loop_) return false;
  control_ = std::make_unique<ControlPlane>(*loop_, key(), dead_after_ns, [this] {
    doorbell().ring_always();
    wake_drivers();
  });
  if (nest_loop()) return true;  // from here on the poller looks at it
  error.cause = Cause::internal;
  std::snprintf(error.text, sizeof error.text, "ringcomm: epoll failed: %s", std::strerror(errno));
  return false;
}

bool Engine::open_port(const TcpOptions& options, int64_t dead_after_ns, Error& error) {
  if (!open_loop(dead_after_ns, error)) return false;
  const std::lock_guard<std::mutex> hold(opening_);
  if (port_) return true;
  port_ = TcpPort::open(*loop_, options, error);
  if (!port_) return false;
  control_->open(*port_);
  return true;
}

bool Engine::open_verbs(const VerbsLibrary& library, const VerbsOptions& options, Error& error) {
  const std::lock_guard<std::mutex> hold(opening_);
  if (verbs_) return true;
  verbs_ = VerbsNet::open(library, *port_, options, error);
  return verbs_ != nullptr;
}

void Engine::nap_for_frames(int64_t ns) {
  if (loop_ && std::this_thread::get_id() == poller_) loop_->run_ready();
  const timespec nap{0, ns};
  nanosleep(&nap, nullptr);
}

}  // namespace ringcomm
