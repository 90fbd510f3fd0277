// The threads that complete torch Futures and run hooks. A callback may issue and wait collectives and may wait on other Futures, so it never runs
// on an engine thread and never with a lock or a lane held; when all threads are inside callbacks that do not return another is started, up to a cap.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

namespace ringcomm {

class Callbacks {
 public:
  static constexpr int kMostThreads = 64;
  // Any thread. The queue is unbounded; past kMostThreads blocked callbacks it waits, and says so once on stderr.
  void run(std::function<void()> callback);
  // No callback starts after this; waits up to `timeout_ns` for running ones. May be called again.
  void stop(long timeout_ns);
  // The threads (pthread_self) that are inside a callback now.
  std::vector<unsigned long> busy();

 private:
  void work();
  void need_one();
  void watch(std::unique_lock<std::mutex>& hold);

  std::mutex mutex_;
  std::condition_variable wake_, halt_, idle_;
  std::deque<std::function<void()>> queue_;
  std::vector<unsigned long> busy_;
  uint64_t returned_ = 0;
  int threads_ = 0, free_ = 0;
  bool watched_ = false;  // by a thread that has just been started
  bool stopping_ = false, warned_ = false;
};

}  // namespace ringcomm
