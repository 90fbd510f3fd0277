#include "cuda/spin_programs.h"

#include <cstring>

namespace ringcomm::cuda {
namespace {

constexpr int64_t kUploadMs = 30'000;  // guessed: behind whatever else keeps the device busy

// Arrays one behind the other, as they will lie in the device's memory.
class Packing {
 public:
  template <typename T>
  size_t add(const std::vector<T>& items) {
    bytes_.resize((bytes_.size() + 63) / 64 * 64);
    const size_t at = bytes_.size();
    bytes_.resize(at + items.size() * sizeof(T));
    if (!items.empty()) std::memcpy(bytes_.data() + at, items.data(), items.size() * sizeof(T));
    return at;
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

template <typename T>
void point(const T*& to, const char* base, size_t at) {
  to = reinterpret_cast<const T*>(base + at);
}

}  // namespace

int SpinPrograms::load(const std::vector<int32_t>& table, const std::vector<char*>& segments, Error& error) {
  if (const auto found = numbers_.find(table); found != numbers_.end()) return found->second;
  SpinProgram made;
  if (const std::string wrong = Program::load(table.data(), table.size(), made.program); !wrong.empty())
    return refuse(Cause::internal, wrong, error), -1;
  for (const bool low : {false, true}) made.refusal[low] = layout_.refusal(made.program, low);
  if (!made.refusal[0].empty()) return refuse(Cause::internal, made.refusal[0], error), -1;
  if (!upload(table, segments, made, error)) return -1;
  all_.push_back(std::move(made));
  return numbers_[table] = size() - 1;
}

bool SpinPrograms::room_for(size_t bytes, Error& error) {
  if (!staging_.empty() && staging_.back()->bytes >= bytes) return true;
  PinnedMemory made = pinned_memory(runtime_, bytes, error);
  if (!made) return false;
  staging_.push_back(std::move(made));
  return true;
}

bool SpinPrograms::upload(const std::vector<int32_t>& table, const std::vector<char*>& segments, SpinProgram& to,
                          Error& error) {
  Packing packing;
  const size_t words = packing.add(table);
  size_t at[2][3] = {};
  for (const bool low : {false, true}) {
    if (!to.refusal[low].empty()) continue;
    const DeviceEnds ends = layout_.ends(to.program, low, segments);
    at[low][0] = packing.add(ends.senders), at[low][1] = packing.add(ends.readers);
    at[low][2] = packing.add(ends.receivers);
  }
  const size_t bytes = packing.bytes().size();
  if (!room_for(bytes, error)) return false;
  to.memory = device_memory(runtime_, bytes, error);
  if (!to.memory) return false;
  const HostMemory& from = *staging_.back();
  std::memcpy(from.host, packing.bytes().data(), bytes);
  if (!runtime_.copy(*to.memory, from.device, bytes, *stream_, error) ||
      !runtime_.drain(*stream_, after_ms(kUploadMs), error))
    return false;
  for (const bool low : {false, true}) {
    KernelCall& call = to.call[low];
    call = {};
    point(call.program, *to.memory, words);
    point(call.senders, *to.memory, at[low][0]);
    point(call.readers, *to.memory, at[low][1]);
    point(call.receivers, *to.memory, at[low][2]);
    layout_.describe(low, call);
  }
  return true;
}

}  // namespace ringcomm::cuda
