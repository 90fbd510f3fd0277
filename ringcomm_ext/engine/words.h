// Lists in sentences.
#pragma once

#include <string>
#include <vector>

namespace ringcomm {

inline std::string joined(const std::vector<std::string>& items, const char* between) {
  std::string text;
  for (size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : between) + items[i];
  return text;
}

// "0, 2-5", of sorted numbers. A run shorter than `shortest` is written out.
inline std::string ranges(const std::vector<int>& ranks, size_t shortest = 2) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < shortest) end = i + 1;
    runs.push_back(std::to_string(ranks[i]) + (end - i > 1 ? "-" + std::to_string(ranks[end - 1]) : ""));
    i = end;
  }
  return joined(runs, ", ");
}

}  // namespace ringcomm
