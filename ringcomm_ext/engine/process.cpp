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

// Newest first; a child of a child may have inherited several. Leaked: deleters run at any time.
struct Owned {
  std::shared_ptr<Heap> heap;
  Owned* older;
};
std::mutex heap_mutex;
std::atomic<Owned*> heaps{nullptr};

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
  if (!start_process_heap(0, error)) return nullptr;
  EngineOptions with_heap = options;
  with_heap.heap = heaps.load()->heap;
  static const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)registered;
  engine = Engine::start(with_heap, error).release();
  return engine.load();
}

Heap* process_heap() {
  const Owned* newest = heaps.load(std::memory_order_acquire);
  return newest != nullptr && !newest->heap->inherited() ? newest->heap.get() : nullptr;
}

Heap* start_process_heap(size_t limit, Error& error) {
  const std::lock_guard<std::mutex> hold(heap_mutex);
  if (Heap* heap = process_heap()) return heap;
  std::shared_ptr<Heap> heap = Heap::create(limit, error);
  if (heap) heaps.store(new Owned{heap, heaps.load()}, std::memory_order_release);
  return heap.get();
}

Heap* heap_of(const void* data) {
  for (const Owned* o = heaps.load(std::memory_order_acquire); o != nullptr; o = o->older)
    if (o->heap->contains(data)) return o->heap.get();
  return nullptr;
}

void stop_process_engine() {
  if (Engine* running = engine.load()) running->leave_all(kLeaveNs);
}

}  // namespace ringcomm
