#include "cuda/spin_lists.h"

namespace ringcomm::cuda {

bool SpinLists::add(size_t lists, size_t chunks, Error& error) {
  PinnedMemory memory = pinned_memory(runtime_, lists * chunks * sizeof(DeviceChunk), error);
  if (!memory) return false;
  for (size_t k = 0; k < lists; ++k) {
    DeviceEvent done = device_event(runtime_, error);
    if (!done) return false;
    lists_.push_back(std::make_unique<List>());
    List& list = *lists_.back();
    list.host = reinterpret_cast<DeviceChunk*>(memory->host) + k * chunks;
    list.device = reinterpret_cast<const DeviceChunk*>(memory->device) + k * chunks;
    list.capacity = chunks, list.done = std::move(done);
  }
  memory_.push_back(std::move(memory));
  return true;
}

SpinLists::List* SpinLists::take(size_t chunks, Error& error) {
  const BesideCaptures may_ask(runtime_, error);
  if (!may_ask) return nullptr;
  for (const auto& list : lists_) {
    if (list->kept || list->capacity < chunks) continue;
    bool free = !list->taken;
    if (!free && !runtime_.done(*list->done, free, error)) return nullptr;
    if (free) return list->taken = true, list.get();
  }
  if (!add(1, chunks, error)) return nullptr;
  lists_.back()->taken = true;
  return lists_.back().get();
}

bool SpinLists::used(List& list, StreamHandle stream, Error& error) {
  return runtime_.capturing(stream, list.kept, error) && (list.kept || runtime_.record(*list.done, stream, error));
}

}  // namespace ringcomm::cuda
