// Sends the counts that receivers still owe when nothing has moved there for a millisecond: a writer may wait for them. Over verbs it also sees to what was posted and
// not heard of since, because a device that fails tells only who asks. One per Connections over a wire.
//
// Threads: any may note(); the looks are the poller's.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "connections/event_loop.h"

namespace ringcomm {

class OwesCounts {  // an end
 public:
  // The poller: true if something is owed still, and has to be looked at again.
  virtual bool count_late() = 0;
  virtual bool told() = 0;  // nothing is owed, and the writer's end has what was sent

 protected:
  ~OwesCounts() = default;
};

class LateCounts {
 public:
  explicit LateCounts(EventLoop& loop) : loop_(loop) {}
  ~LateCounts();
  void add(OwesCounts* receiver);
  void stop();      // nothing is looked at afterwards
  bool all_told();  // and the writers' ends know
  // Something is owed. Any thread; one load where a look is due already.
  void note() {
    if (!due_.load(std::memory_order_seq_cst) && !due_.exchange(true, std::memory_order_seq_cst)) schedule();
  }

 private:
  void schedule();
  void look();

  EventLoop& loop_;
  std::atomic<bool> due_{false};
  std::mutex mutex_;
  std::vector<OwesCounts*> receivers_;
  EventLoop::TimerId timer_ = 0;
  bool stopped_ = false;
};

}  // namespace ringcomm
