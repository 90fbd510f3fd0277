#include "engine/process.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "engine/communicator.h"

namespace ringcomm {
namespace {

std::mutex start_mutex;
std::atomic<Engine*> engine{nullptr};
std::atomic<bool> is_child{false};

void after_fork_in_child() {
  Engine* inherited = engine.exchange(nullptr);
  if (!inherited) return;
  is_child = true;
  inherited->close_in_child();
}

}  // namespace

Engine* process_engine() { return engine.load(); }
bool forked() { return is_child.load(); }

Engine* start_process_engine(const EngineOptions& options, Error& error) {
  const std::lock_guard<std::mutex> hold(start_mutex);
  if (Engine* running = engine.load()) return running;
  static const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)registered;
  engine = Engine::start(options, error).release();
  return engine.load();
}

void stop_process_engine() {
  if (Engine* running = engine.load()) running->leave_all(kLeaveNs);
}

}  // namespace ringcomm
