// Groups made from a group: split, merge, shrink. Each is a group of its own, with its own segments, agreed on through the store; it takes over the
// configuration and the ranks' numbers in the job, so that errors name ranks as the user knows them.
#include <algorithm>
#include <utility>

#include "c10d/backend.h"

namespace ringcomm {

using c10::intrusive_ptr;

namespace {

constexpr int kAbortFirst = 1;  // torch.distributed.distributed_c10d.SHRINK_ABORT

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (int r : ranks) text += (text.empty() ? "" : ",") + std::to_string(r);
  return text;
}

}  // namespace

intrusive_ptr<Backend> Backend::found(const intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
                                      const std::vector<int>& numbers, const intrusive_ptr<Options>& opts) const {
  TORCH_CHECK(found_ != nullptr, "ringcomm: group '", group_->spec().name, "' was destroyed on this rank");
  const bool given = opts && opts->timeout.count() > 0;
  return found_(store, name, rank, numbers, given ? opts->timeout : std::chrono::milliseconds(timeout_ms_.load()));
}

// `ranks`: of this group. Null where this rank is not among them.
intrusive_ptr<c10d::Backend> Backend::split(const intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                            const intrusive_ptr<Options>& opts) {
  std::vector<int> numbers;
  for (int r : ranks) {
    TORCH_CHECK_VALUE(r >= 0 && r < getSize(), "ringcomm: split: rank ", r, " is not in the group (0 to ",
                      getSize() - 1, ")");
    numbers.push_back(group_->spec().peers[r].global_rank);
  }
  const auto me = std::find(ranks.begin(), ranks.end(), getRank());
  if (me == ranks.end()) return nullptr;
  const std::string name =
      opts && !opts->group_name.empty() ? opts->group_name : group_->spec().name + "/split:" + listed(ranks);
  return found(store, name, static_cast<int>(me - ranks.begin()), numbers, opts);
}

// The other ranks come from other groups, so their numbers in this job are not known: they are named by their place in the new group.
intrusive_ptr<c10d::Backend> Backend::merge(const intrusive_ptr<c10d::Store>& store, const intrusive_ptr<Options>& opts,
                                            const int& rank, const int& size) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "ringcomm: merge: rank ", rank, " of ", size, " ranks");
  std::vector<int> numbers(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) numbers[r] = r;
  const std::string name = opts && !opts->group_name.empty() ? opts->group_name : group_->spec().name + "/merged";
  return found(store, name, rank, numbers, opts);
}

// Only the ranks that stay call it; those left out may be dead. This group may have failed: what is made is new.
intrusive_ptr<c10d::Backend> Backend::shrink(const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
                                             const intrusive_ptr<Options>& opts_override) {
  std::vector<int> ranks, numbers;
  for (int r = 0; r < getSize(); ++r) {
    if (std::count(ranks_to_exclude.begin(), ranks_to_exclude.end(), r)) continue;
    ranks.push_back(r);
    numbers.push_back(group_->spec().peers[r].global_rank);
  }
  const auto me = std::find(ranks.begin(), ranks.end(), getRank());
  TORCH_CHECK_VALUE(me != ranks.end(), "ringcomm: shrink: this rank (", getRank(),
                    ") is among those to be left out; only the others call it");
  if (shrink_flags & kAbortFirst) abort();
  return found(nullptr, group_->spec().name + "/shrunk:" + listed(ranks), static_cast<int>(me - ranks.begin()), numbers,
               opts_override);
}

}  // namespace ringcomm
