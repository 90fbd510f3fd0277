// The thread that looks after calls on devices: one for the process, made with the first of them, never joined. It asks events, lets go of tensors, and finds what has gone wrong; calls that
// nobody waits for end by it.
//
// While nothing is under way it sleeps. It takes Python's lock only by dropping tensors and by callbacks, and holds none of its own then.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace ringcomm {

// What it looks after.
class Watched {
 public:
  virtual ~Watched() = default;
  // False: nothing is under way, it need not be looked at until it is added again.
  virtual bool look() = 0;
  // Whether something is under way. May be asked with the watch's lock held: asks nobody else.
  virtual bool busy() const = 0;
};

class DeviceWatch {
 public:
  // Of this process: a forked child has its own.
  static DeviceWatch& process();
  // Its thread runs from here on. Throws where none can be had.
  void start();
  // Something is under way there; after start(). Any thread; adding twice is once.
  void add(std::shared_ptr<Watched> side);
  // Interpreter exit: nothing is looked at or dropped afterwards. Returns when no look is under way, or after a second.
  void stop();

 private:
  DeviceWatch() = default;
  void run();

  const int pid_ = static_cast<int>(getpid());
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Watched>> sides_;
  bool runs_ = false, looking_ = false, stopping_ = false;
};

}  // namespace ringcomm
