#include "c10d/device_watch.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "engine/threads.h"

namespace ringcomm {
namespace {

constexpr std::chrono::milliseconds kBetween{1};  // looks; guessed
constexpr std::chrono::seconds kStopPatience{1};

}  // namespace

// Leaked: its thread must not meet static destructors. What a child inherits may be locked, by a thread that it has not.
DeviceWatch& DeviceWatch::process() {
  static std::atomic<DeviceWatch*> watch{nullptr};
  DeviceWatch* there = watch.load();
  if (there != nullptr && there->pid_ == getpid()) return *there;
  auto* const fresh = new DeviceWatch;
  if (watch.compare_exchange_strong(there, fresh)) return *fresh;
  delete fresh;  // another thread came first
  return *there;
}

void DeviceWatch::start() {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (runs_ || stopping_) return;
  start_thread("ringcomm-device", [this] { run(); }).detach();
  runs_ = true;
}

void DeviceWatch::add(std::shared_ptr<Watched> side) {
  const std::lock_guard<std::mutex> hold(mutex_);
  if (stopping_ || std::find(sides_.begin(), sides_.end(), side) != sides_.end()) return;
  sides_.push_back(std::move(side));
  changed_.notify_all();
}

void DeviceWatch::stop() {
  std::unique_lock<std::mutex> hold(mutex_);
  stopping_ = true;
  changed_.notify_all();
  changed_.wait_for(hold, kStopPatience, [this] { return !looking_; });
  // What they hold may take Python's lock to go away: it stays.
  for (auto& side : sides_) (void)new std::shared_ptr<Watched>(std::move(side));
  sides_.clear();
}

void DeviceWatch::run() {
  std::unique_lock<std::mutex> hold(mutex_);
  while (!stopping_) {
    if (sides_.empty()) {
      changed_.wait(hold);
      continue;
    }
    std::vector<std::shared_ptr<Watched>> now = sides_, idle;
    looking_ = true;
    hold.unlock();
    for (const auto& side : now)
      if (!side->look()) idle.push_back(side);
    hold.lock();
    looking_ = false;
    if (stopping_) {  // see stop()
      for (auto* all : {&now, &idle})
        for (auto& side : *all) (void)new std::shared_ptr<Watched>(std::move(side));
      changed_.notify_all();
      return;
    }
    // Added again while it was looked at, it would be dropped here though something is under way: so whoever is idle is asked once more, now under the lock.
    sides_.erase(std::remove_if(sides_.begin(), sides_.end(),
                                [&](const auto& side) {
                                  return std::find(idle.begin(), idle.end(), side) != idle.end() && !side->busy();
                                }),
                 sides_.end());
    hold.unlock();
    now.clear(), idle.clear();  // the last reference may be among them
    hold.lock();
    changed_.wait_for(hold, kBetween);
  }
}

}  // namespace ringcomm
