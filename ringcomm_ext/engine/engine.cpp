#include "engine/engine.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/communicator.h"
#include "engine/poller_events.h"
#include "engine/threads.h"

namespace ringcomm {
namespace {

using namespace poller;

constexpr int64_t kDrainNs = 200'000'000;  // at exit, for callbacks that are about to return

bool system_error(Error& error, const char* what) {
  error.cause = Cause::internal;
  std::snprintf(error.text, sizeof error.text, "ringcomm: %s failed: %s", what, std::strerror(errno));
  return false;
}

}  // namespace

std::unique_ptr<Engine> Engine::start(const EngineOptions& options, Error& error) {
  std::unique_ptr<Engine> engine(new Engine(options));
  engine->self_ = std::make_shared<PeerProcess>();
  engine->self_->key = to_hex(fresh_nonce());
  engine->self_->doorbell_segment = Segment::create(sizeof(Doorbell), error);
  if (!engine->self_->doorbell_segment || !engine->server_.listen(error)) return nullptr;
  engine->heap_ = options.heap ? options.heap : Heap::create(0, error);
  if (!engine->heap_) return nullptr;
  engine->self_->heap = engine->heap_->segment();
  engine->self_->pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (engine->self_->pidfd < 0) {
    system_error(error, "pidfd_open (Linux 5.3 or newer is needed)");
    return nullptr;
  }
  engine->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  engine->stop_event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  engine->timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (engine->epoll_ < 0 || engine->stop_event_ < 0 || engine->timer_ < 0 ||
      !add_to_epoll(engine->epoll_, engine->server_.listener(), kListener) ||
      !add_to_epoll(engine->epoll_, engine->stop_event_, kStop) ||
      !add_to_epoll(engine->epoll_, engine->timer_, kTimer)) {
    system_error(error, "epoll");
    return nullptr;
  }
  engine->peers_[engine->self_->key] = engine->self_;
  Engine* e = engine.get();
  for (int i = 0; i < options.workers; ++i)
    engine->threads_.push_back(start_thread("rc-driver", [e, i] { e->drive(i); }));
  engine->threads_.push_back(start_thread("rc-poller", [e] { e->poll(); }));
  return engine;
}

Engine::~Engine() {
  stopping_ = true;
  if (stop_event_ >= 0) {
    const uint64_t one = 1;
    [[maybe_unused]] const auto n = write(stop_event_, &one, sizeof one);
  }
  if (!threads_.empty()) {
    wake_drivers();
    doorbell().ring_always();
  }
  for (std::thread& t : threads_) t.join();
  callbacks_.stop(2'000'000'000);
  groups_.clear();  // their peers leave the epoll set
  control_.reset();
  verbs_.reset();
  port_.reset();
  for (int fd : {epoll_, stop_event_, timer_, self_ ? self_->pidfd : -1})
    if (fd >= 0) close(fd);
}

std::vector<int> Engine::own_fds() const {
  return {self_->doorbell_segment->fd(), self_->pidfd, heap_->segment()->fd()};
}

bool Engine::nest_loop() { return add_to_epoll(epoll_, loop_->fd(), kLoop); }

// ---------------------------------------------------------------------------------------------------------------- peers

std::shared_ptr<PeerProcess> Engine::peer(const std::string& key, const PeerFds& fds, Error& error) {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (auto known = peers_[key].lock()) {
    for (int fd : {fds.doorbell, fds.pidfd, fds.heap}) close(fd);
    return known;
  }
  auto doorbell = Segment::open(fds.doorbell, error);
  auto heap = Segment::open(fds.heap, error);
  if (!doorbell || !heap) {
    close(fds.pidfd);
    if (doorbell) {
      const size_t end = std::strlen(error.text);
      std::snprintf(error.text + end, sizeof error.text - end,
                    " (address space for a peer's registered memory: lower memory.registered)");
    }
    return nullptr;
  }
  heap->exclude_from_dumps();
  // The last group with this peer may go away on any thread. Closing does not take the descriptor out of the epoll set: it came through a socket, so
  // its sender has it open too; it would stay, and the next descriptor of this peer under the same number would be refused as known.
  std::shared_ptr<PeerProcess> peer(new PeerProcess, [epoll = epoll_](PeerProcess* p) {
    if (p->pidfd >= 0) {
      epoll_ctl(epoll, EPOLL_CTL_DEL, p->pidfd, nullptr);
      close(p->pidfd);
    }
    delete p;
  });
  peer->key = key;
  peer->pidfd = fds.pidfd;
  peer->doorbell_segment = std::move(doorbell);
  peer->heap = std::move(heap);
  peers_[key] = peer;
  watch(peer);
  for (auto it = peers_.begin(); it != peers_.end();) it = it->second.expired() ? peers_.erase(it) : std::next(it);
  for (auto it = watched_.begin(); it != watched_.end();)
    it = it->second.expired() ? watched_.erase(it) : std::next(it);
  return peer;
}

// ---------------------------------------------------------------------------------------------------------------- groups

void Engine::add(const CommunicatorPtr& group) {
  const std::lock_guard<std::mutex> hold(mutex_);
  groups_.push_back(group);
  version_.fetch_add(1);
}

void Engine::remove(const Communicator* group) {
  CommunicatorPtr last;  // may be the last reference: released outside the lock
  const std::lock_guard<std::mutex> hold(mutex_);
  const auto it =
      std::find_if(groups_.begin(), groups_.end(), [&](const CommunicatorPtr& g) { return g.get() == group; });
  if (it == groups_.end()) return;
  last = std::move(*it);
  groups_.erase(it);
  version_.fetch_add(1);
}

// Threads that still wait are not woken: a thread that comes back to Python while the interpreter is being taken down is ended by it in
// the midst of C++ frames (Python below 3.14), and that aborts the process. Those in Work.wait are parked (Communicator::wait); those
// that wait for a Future stay where they are, because no callback completes it any more.
void Engine::leave_all(int64_t grace_ns) {
  const int64_t until = now_ns() + grace_ns;  // for all groups together
  uint64_t version;
  const std::vector<CommunicatorPtr> all = groups(version);
  for (const CommunicatorPtr& group : all) group->let_end(until, false);
  exiting_ = true;
  callbacks_.stop(std::max<int64_t>(until - now_ns(), kDrainNs));
  for (const CommunicatorPtr& group : all) {
    group->leave(0, false);
    remove(group.get());
  }
  // The last that peers on other nodes hear of this process must not be lost with it.
  if (control_) control_->settle(std::max(until, now_ns() + kDrainNs));
  if (port_) port_->settle(std::max(until, now_ns() + kDrainNs));
}

void Engine::close_in_child() {
  close(server_.listener());
  if (loop_) loop_->close_in_child();
  close(epoll_);
  close(stop_event_);
  close(timer_);
}

std::vector<CommunicatorPtr> Engine::groups(uint64_t& version) {
  const std::lock_guard<std::mutex> hold(mutex_);
  version = version_.load();
  return groups_;
}

}  // namespace ringcomm
