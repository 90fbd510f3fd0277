// A set of disjoint ranges of bytes, for an allocator that keeps its books outside the memory it gives out (peers map that memory, and unused parts
// of it have no pages). Neighbours melt into one; take() is best fit. Not thread safe.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace ringcomm {

class Ranges {
 public:
  struct Range {
    size_t offset, bytes;
  };

  // Adds a range that is not in the set; gives the range it became part of.
  Range add(size_t offset, size_t bytes) {
    total_ += bytes;
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = erase(next);
    }
    if (next != by_offset_.begin())
      if (const auto before = std::prev(next); before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        erase(before);
      }
    insert(offset, bytes);
    return {offset, bytes};
  }

  // Cuts `bytes` from the smallest range that holds them. False: there is none.
  bool take(size_t bytes, size_t& offset) {
    const auto fit = by_size_.lower_bound({bytes, 0});
    if (fit == by_size_.end()) return false;
    const auto [have, at] = *fit;
    remove({at, have});
    if (have > bytes) insert(at + bytes, have - bytes), total_ += have - bytes;
    offset = at;
    return true;
  }

  // Takes a range out that add() gave or first() shows.
  void remove(Range r) {
    erase(by_offset_.find(r.offset));
    total_ -= r.bytes;
  }

  bool empty() const { return by_offset_.empty(); }
  Range first() const { return {by_offset_.begin()->first, by_offset_.begin()->second}; }
  size_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }
  size_t total() const { return total_; }

 private:
  using Map = std::map<size_t, size_t>;
  void insert(size_t offset, size_t bytes) {
    by_offset_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
  }
  Map::iterator erase(Map::const_iterator it) {
    by_size_.erase({it->second, it->first});
    return by_offset_.erase(it);
  }

  Map by_offset_;                                // bytes by offset
  std::set<std::pair<size_t, size_t>> by_size_;  // (bytes, offset)
  size_t total_ = 0;
};

}  // namespace ringcomm
