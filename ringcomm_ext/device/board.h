// What each rank has called on its device, on pages that all ranks have mapped: slots of `memop` mode carry no tags, and no kernel is there to find out that ranks differ. Also where ranks
// meet at the end: a collective of the group would fail it where one of them does not come.
//
// Threads: note() and close() by whoever orders the calls; the rest by any.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace ringcomm {

class DeviceBoard {
 public:
  static constexpr size_t kBytes = 4096;  // of one rank's page

  DeviceBoard() = default;
  // Pages by rank, all 0 at first.
  DeviceBoard(const std::vector<char*>& pages, int rank) : rank_(rank) {
    for (char* page : pages) pages_.push_back(reinterpret_cast<Page*>(page));
  }

  // `sequence`: from 1. `what`: the same where the calls are.
  void note(uint64_t sequence, uint32_t what) {
    Entry& entry = at(rank_, sequence);
    entry.store(static_cast<uint64_t>(static_cast<uint32_t>(sequence)) << 32 | what, std::memory_order_release);
    pages_[static_cast<size_t>(rank_)]->latest.store(sequence, std::memory_order_release);
  }
  uint64_t latest(int rank) const { return pages_[static_cast<size_t>(rank)]->latest.load(std::memory_order_acquire); }
  // True where the rank has made the call of this number, not long ago, and it was another one.
  bool differs(int rank, uint64_t sequence, uint32_t what) const {
    const uint64_t entry = at(rank, sequence).load(std::memory_order_acquire);
    return entry >> 32 == static_cast<uint32_t>(sequence) && static_cast<uint32_t>(entry) != what;
  }
  // Nothing more of what the others own is open here. What a rank says last.
  void close() { pages_[static_cast<size_t>(rank_)]->closed.store(1, std::memory_order_release); }
  bool closed(int rank) const { return pages_[static_cast<size_t>(rank)]->closed.load(std::memory_order_acquire) != 0; }
  int ranks() const { return static_cast<int>(pages_.size()); }

 private:
  using Entry = std::atomic<uint64_t>;
  static constexpr size_t kEntries = 256;
  struct Page {
    std::atomic<uint64_t> latest, closed;
    Entry entries[kEntries];
  };
  static_assert(sizeof(Page) <= kBytes && Entry::is_always_lock_free);
  Entry& at(int rank, uint64_t sequence) const {
    return pages_[static_cast<size_t>(rank)]->entries[sequence % kEntries];
  }

  std::vector<Page*> pages_;
  int rank_ = 0;
};

}  // namespace ringcomm
