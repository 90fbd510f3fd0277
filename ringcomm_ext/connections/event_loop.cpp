#include "connections/event_loop.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

namespace ringcomm {
namespace {

constexpr uint64_t kTimer = 0;  // what epoll gives for the timer; watches have other numbers
constexpr int kMostEvents = 64;

}  // namespace

std::unique_ptr<EventLoop> EventLoop::open(Error& error) {
  std::unique_ptr<EventLoop> loop(new EventLoop);
  loop->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  loop->timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.u64 = kTimer;
  if (loop->epoll_ < 0 || loop->timer_ < 0 || epoll_ctl(loop->epoll_, EPOLL_CTL_ADD, loop->timer_, &e) != 0) {
    error.cause = Cause::internal;
    std::snprintf(error.text, sizeof error.text, "ringcomm: epoll failed: %s", std::strerror(errno));
    return nullptr;
  }
  return loop;
}

EventLoop::~EventLoop() {
  for (int fd : {epoll_, timer_})
    if (fd >= 0) close(fd);
  for (Block* b = slots_.next.load(); b != nullptr;) delete std::exchange(b, b->next.load());
}

std::atomic<int>* EventLoop::free_slot() {
  for (Block* b = &slots_;; b = b->next.load()) {
    for (auto& fd : b->fds)
      if (fd.load() < 0) return &fd;
    if (b->next.load() == nullptr) b->next.store(new Block);
  }
}

Watch EventLoop::add(int fd, uint32_t events, Handler handler) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const uint64_t id = next_id_++;
  epoll_event e{};
  e.events = events;
  e.data.u64 = id;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e) != 0) return {};
  std::atomic<int>* slot = free_slot();
  slot->store(fd);
  entries_[id] = {std::make_shared<Handler>(std::move(handler)), slot};
  return {fd, id};
}

bool EventLoop::change(const Watch& watch, uint32_t events) {
  epoll_event e{};
  e.events = events;
  e.data.u64 = watch.id;
  return epoll_ctl(epoll_, EPOLL_CTL_MOD, watch.fd, &e) == 0;
}

void EventLoop::remove(Watch& watch) {
  if (!watch) return;
  Entry gone;  // released without the lock: what a handler owns may call back
  std::unique_lock<std::mutex> hold(mutex_);
  const auto it = entries_.find(watch.id);
  if (it != entries_.end()) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, watch.fd, nullptr);
    it->second.slot->store(-1);
    gone = std::move(it->second);
    entries_.erase(it);
  }
  await_end(hold, watch.id);
  watch = {};
  hold.unlock();
}

void EventLoop::await_end(std::unique_lock<std::mutex>& hold, uint64_t id) {
  if (poller_ == std::this_thread::get_id()) return;
  ended_.wait(hold, [&] { return running_ != id; });
}

// ---------------------------------------------------------------------------------------------------------------- times

EventLoop::TimerId EventLoop::at(int64_t when_ns, std::function<void()> call) {
  const std::lock_guard<std::mutex> hold(mutex_);
  const TimerId id = next_id_++;
  due_[{when_ns, id}] = std::move(call);
  when_[id] = when_ns;
  set_timer();
  return id;
}

void EventLoop::cancel(TimerId& timer) {
  if (timer == 0) return;
  std::function<void()> gone;
  std::unique_lock<std::mutex> hold(mutex_);
  if (const auto it = when_.find(timer); it != when_.end()) {
    const auto due = due_.find({it->second, timer});
    gone = std::move(due->second);
    due_.erase(due);
    when_.erase(it);
  }
  await_end(hold, timer);
  timer = 0;
  hold.unlock();
}

// A timer that is set too early is harmless, so cancelled calls leave it.
void EventLoop::set_timer() {
  if (due_.empty()) return;
  const int64_t first = std::max<int64_t>(due_.begin()->first.first, 1);  // 0 would stop it
  if (first >= timer_set_to_) return;
  timer_set_to_ = first;
  const itimerspec t{{0, 0}, {static_cast<time_t>(first / 1'000'000'000), static_cast<long>(first % 1'000'000'000)}};
  timerfd_settime(timer_, TFD_TIMER_ABSTIME, &t, nullptr);
}

void EventLoop::run_due(int64_t now) {
  uint64_t times;
  [[maybe_unused]] const auto n = read(timer_, &times, sizeof times);
  std::unique_lock<std::mutex> hold(mutex_);
  timer_set_to_ = INT64_MAX;
  while (!due_.empty() && due_.begin()->first.first <= now) {
    const auto first = due_.begin();
    const TimerId id = first->first.second;
    std::function<void()> call = std::move(first->second);
    due_.erase(first);
    when_.erase(id);
    running_ = id;
    hold.unlock();
    call();
    call = nullptr;
    hold.lock();
    running_ = 0;
    ended_.notify_all();
  }
  set_timer();
}

// --------------------------------------------------------------------------------------------------------------- poller

void EventLoop::run_ready() {
  epoll_event events[kMostEvents];
  const int n = epoll_wait(epoll_, events, kMostEvents, 0);
  if (n <= 0) return;
  std::unique_lock<std::mutex> hold(mutex_);
  poller_ = std::this_thread::get_id();
  for (int i = 0; i < n; ++i) {
    const uint64_t id = events[i].data.u64;
    if (id == kTimer) {
      hold.unlock();
      run_due(now_ns());
      hold.lock();
      continue;
    }
    const auto it = entries_.find(id);
    if (it == entries_.end()) continue;  // removed since
    std::shared_ptr<Handler> handler = it->second.handler;
    running_ = id;
    hold.unlock();
    (*handler)(events[i].events);
    handler.reset();
    hold.lock();
    running_ = 0;
    ended_.notify_all();
  }
  poller_ = {};
}

void EventLoop::close_in_child() {
  close(epoll_);
  close(timer_);
  for (const Block* b = &slots_; b != nullptr; b = b->next.load())
    for (const auto& fd : b->fds)
      if (const int open = fd.load(); open >= 0) close(open);
}

void EventLoop::close_in_child_too(int fd) {
  const std::lock_guard<std::mutex> hold(mutex_);
  free_slot()->store(fd);
}

void EventLoop::keep_in_child(int fd) {
  const std::lock_guard<std::mutex> hold(mutex_);
  for (Block* b = &slots_; b != nullptr; b = b->next.load())
    for (auto& slot : b->fds) {
      int expected = fd;
      if (slot.compare_exchange_strong(expected, -1)) return;
    }
}

}  // namespace ringcomm
