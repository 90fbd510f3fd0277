// What both modes do with the ranks' cards.
#pragma once

#include <initializer_list>
#include <vector>

#include "cuda/device_group.h"

namespace ringcomm::cuda {

// Of the numbers that a layout follows from.
uint64_t layout_digest(std::initializer_list<uint64_t> numbers);

// One card a rank, in their order, all of one mode and layout; else `error` names the rank.
bool check_cards(const std::vector<DeviceCard>& cards, const DeviceCard& own, int ranks, Error& error);

// The segments by rank, as this process has them. All or nothing.
bool import_segments(DeviceRuntime& runtime, const std::vector<DeviceCard>& cards, int rank, char* own,
                     std::vector<PeerMemory>& peers, std::vector<char*>& segments, Error& error);

}  // namespace ringcomm::cuda
