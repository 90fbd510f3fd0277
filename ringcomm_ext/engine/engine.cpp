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
#include "engine/threads.h"

namespace ringcomm {
namespace {

// The longest sleep of a driver on duty. Nothing relies on it but deadlines; the model check has no such cap.
constexpr int64_t kLookAgainNs = 200'000'000;
constexpr int64_t kBoardsNs = 1'000'000'000;
constexpr int64_t kVisitNs = 10'000'000'000;  // a peer asks as soon as it has connected
constexpr size_t kMostVisitors = 256;
constexpr int64_t kDrainNs = 200'000'000;  // at exit, for callbacks that are about to return
constexpr uint64_t kListener = 1ull << 62, kStop = 2ull << 62, kConnection = 3ull << 62, kKind = 3ull << 62;
constexpr uint64_t kTimer = kStop | 1, kLoop = kStop | 2;

bool system_error(Error& error, const char* what) {
  error.cause = Cause::internal;
  std::snprintf(error.text, sizeof error.text, "ringcomm: %s failed: %s", what, std::strerror(errno));
  return false;
}

bool add_to_epoll(int epoll, int fd, uint64_t id) {
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.u64 = id;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) == 0;
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

// ---------------------------------------------------------------------------------------------------------------- driving

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

// The order against the poller: work is queued before the timer is claimed here; there the claim is given back before the look. So either the
// poller's look sees the work, or this sets the timer anew.
void Engine::drive_soon() {
  if (timer_set_.exchange(true, std::memory_order_seq_cst)) return;
  const itimerspec once{{0, 0}, {0, static_cast<long>(soon_ns_.load(std::memory_order_relaxed))}};
  timerfd_settime(timer_, 0, &once, nullptr);
}

// Work issued a moment ago is left alone: its caller is most likely on the way to wait() and would find its core taken. It is looked at later; only
// work that was found to lie around brings the next look forward again.
void Engine::look_after_all() {
  uint64_t count;
  [[maybe_unused]] const auto n = read(timer_, &count, sizeof count);
  timer_set_.store(false, std::memory_order_seq_cst);
  bool found = false, left = false, young = false;
  uint64_t version;
  for (const CommunicatorPtr& group : groups(version)) {
    if (!group->wants_driver(0)) continue;
    if (now_ns() - group->last_left_ns() < kYoungNs) {
      young = true;
      continue;
    }
    found = true;
    group->advance();
    left |= group->wants_driver(0);
  }
  young_looks_ = young && !found ? std::min(young_looks_ + 1, kMostYoungLooks) : 0;
  // The first time, what is young may be the last of several calls that nobody waits for but through a Future: it is looked at as soon as it is old
  // enough. Time after time, it is a caller that waits for each of its calls.
  const int64_t idle = std::min(2 * soon_ns_.load(std::memory_order_relaxed), kLatestNs);
  soon_ns_.store(found ? kSoonNs : young ? kYoungNs << (young_looks_ - 1) : idle, std::memory_order_relaxed);
  if (young) drive_soon();
  if (left) wake_drivers();
}

// A parked driver wakes by its own word; one asleep on the doorbell looks at the word after raising the flag, or is rung here.
void Engine::wake_drivers() {
  driver_word_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) futex_wake_all(driver_word_, false);
  doorbell().ring();
}

void Engine::drive(int worker) {
  std::vector<CommunicatorPtr> mine;
  uint64_t version = 0;
  Backoff backoff(options_.driver);
  int64_t next_look = 0;
  while (!stopping_) {
    const uint32_t seen = driver_word_.load(std::memory_order_seq_cst);
    if (version != version_.load()) mine = groups(version);
    bool duty = false, moved = false;
    const auto look = [&] {
      for (const CommunicatorPtr& group : mine)
        if (group->wants_driver(worker)) duty = true, moved |= group->advance();
    };
    look();
    if (moved) {
      backoff.reset();
      // One group that keeps this thread busy must not hide that another is overdue.
      if (const int64_t now = now_ns(); now >= next_look) {
        next_look = now + kLookAgainNs;
        for (const CommunicatorPtr& group : mine) group->look_at_deadlines(now);
      }
      continue;
    }
    if (!duty) {
      backoff.reset();
      parked_.fetch_add(1, std::memory_order_seq_cst);
      look();
      if (!duty && !stopping_ && version == version_.load()) {
        mine.clear();  // a parked driver keeps no group alive
        version = 0;
        futex_sleep(driver_word_, seen, INT64_MAX / 2, false);
      }
      parked_.fetch_sub(1, std::memory_order_seq_cst);
      continue;
    }
    if (backoff.stay_awake()) continue;
    const uint32_t bell = doorbell().raise();
    look();
    if (moved || stopping_ || seen != driver_word_.load(std::memory_order_seq_cst)) continue;
    const int64_t now = now_ns();
    for (const CommunicatorPtr& group : mine) group->look_at_deadlines(now);
    doorbell().sleep(bell, kLookAgainNs);
  }
}

}  // namespace ringcomm
