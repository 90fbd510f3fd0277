// The poller: the thread of an engine that sleeps in the kernel until a peer dies, a visitor asks for descriptors, a socket of another node has something,
// or work has lain around.
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "engine/communicator.h"
#include "engine/engine.h"
#include "engine/poller_events.h"

namespace ringcomm {
namespace {

using namespace poller;

constexpr int64_t kBoardsNs = 1'000'000'000;
constexpr int64_t kVisitNs = 10'000'000'000;  // a peer asks as soon as it has connected
constexpr size_t kMostVisitors = 256;

}  // namespace

void Engine::watch(const std::shared_ptr<PeerProcess>& peer) {
  const uint64_t id = next_watch_++;
  watched_[id] = peer;
  add_to_epoll(epoll_, peer->pidfd, id);
}

void Engine::look_at_peer(uint64_t id) {
  std::shared_ptr<PeerProcess> peer;
  {
    const std::lock_guard<std::mutex> hold(mutex_);
    const auto it = watched_.find(id);
    if (it != watched_.end()) peer = it->second.lock();
  }
  if (!peer) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, peer->pidfd, nullptr);
  peer->dead.store(true, std::memory_order_seq_cst);
  doorbell().ring_always();  // whoever waits for it must look
  wake_drivers();
}

void Engine::poll() {
  poller_ = std::this_thread::get_id();
  while (!stopping_) {
    epoll_event events[16];
    const int n = epoll_wait(epoll_, events, 16, visitors_.empty() && !watches_boards_ ? -1 : 1000);
    for (int i = 0; i < n; ++i) {
      const uint64_t id = events[i].data.u64;
      if ((id & kKind) == kListener) {
        welcome();
      } else if ((id & kKind) == kConnection) {
        answer(id);
      } else if (id == kTimer) {
        look_after_all();
      } else if (id == kLoop) {
        loop_->run_ready();
      } else if (id != kStop) {
        look_at_peer(id);
      }
    }
    show_out(now_ns() - kVisitNs);
    if (watches_boards_) look_at_boards();
  }
}

void Engine::watch_boards() {
  if (!watches_boards_.exchange(true)) drive_soon();  // wakes the poller
}

void Engine::look_at_boards() {
  if (now_ns() < next_boards_) return;
  next_boards_ = now_ns() + kBoardsNs;
  uint64_t version;
  for (const CommunicatorPtr& group : groups(version)) group->look_at_board();
}

void Engine::welcome() {
  const int fd = server_.accept();
  if (fd < 0) {
    // Out of descriptors, perhaps: the listener stays readable, and asking again at once would burn a core.
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return;
  }
  if (visitors_.size() >= kMostVisitors) show_out(visitors_.begin()->second.since);
  const uint64_t id = kConnection | next_visitor_++;
  if (add_to_epoll(epoll_, fd, id))
    visitors_[id] = {fd, now_ns()};
  else
    close(fd);
}

void Engine::answer(uint64_t visitor) {
  const auto it = visitors_.find(visitor);
  if (it == visitors_.end()) return;  // shown out since the event came
  server_.serve(it->second.fd);
  visitors_.erase(it);
}

void Engine::show_out(int64_t older_than) {
  while (!visitors_.empty() && visitors_.begin()->second.since <= older_than) {
    close(visitors_.begin()->second.fd);
    visitors_.erase(visitors_.begin());
  }
}

}  // namespace ringcomm
