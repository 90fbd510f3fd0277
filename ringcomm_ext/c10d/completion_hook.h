// The user's function that is told of every Work that ended (ProcessGroup._register_on_completion_hook).
//
// It runs on a callback thread, never on an engine thread, and never twice at a time: most hooks append to a list or write a line, and one that had
// to lock for that would be a trap. Shared by the backend and the works that are under way, because either may end first.
//
// Threads: anything from anywhere.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "engine/callbacks.h"

namespace ringcomm {

class CompletionHook : public std::enable_shared_from_this<CompletionHook> {
 public:
  using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  CompletionHook(Callbacks& callbacks, Function function)
      : callbacks_(callbacks), function_(std::make_shared<Function>(std::move(function))) {}

  void expect_one();  // a work has begun, which will say ended()
  void ended(std::shared_ptr<c10d::WorkInfo> info);
  void call(const std::shared_ptr<c10d::WorkInfo>& info);
  // Waits until the hook has run for every work begun so far; inside the hook, for none. `stop`, asked every 200 ms, may end it: then false.
  bool wait(const std::function<bool()>& stop);
  // Lets go of the function: it may hold Python objects, which are to die with the group and not with the last work.
  void close();

 private:
  void drain();

  Callbacks& callbacks_;
  std::mutex mutex_;
  std::condition_variable none_left_;
  std::shared_ptr<Function> function_;
  std::deque<std::shared_ptr<c10d::WorkInfo>> queue_;
  int pending_ = 0;
  bool draining_ = false;
  std::thread::id drainer_;  // while draining_
};

}  // namespace ringcomm
