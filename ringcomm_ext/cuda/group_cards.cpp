#include "cuda/group_cards.h"

namespace ringcomm::cuda {

// FNV-1a, 64 bits, with its published constants.
uint64_t layout_digest(std::initializer_list<uint64_t> numbers) {
  uint64_t digest = 0xcbf29ce484222325ull;
  for (const uint64_t number : numbers)
    for (int byte = 0; byte < 8; ++byte) digest = (digest ^ (number >> (8 * byte) & 0xff)) * 0x100000001b3ull;
  return digest;
}

bool check_cards(const std::vector<DeviceCard>& cards, const DeviceCard& own, int ranks, Error& error) {
  if (static_cast<int>(cards.size()) != ranks)
    return refuse(Cause::internal, std::to_string(cards.size()) + " cards of " + std::to_string(ranks) + " ranks",
                  error);
  for (int r = 0; r < ranks; ++r) {
    const DeviceCard& card = cards[static_cast<size_t>(r)];
    std::string wrong;
    if (card.rank != r)
      wrong = "the card in place " + std::to_string(r) + " is of rank " + std::to_string(card.rank);
    else if (card.mode != own.mode)
      wrong = "rank " + std::to_string(r) + " is in " + name(card.mode) + " mode, rank " + std::to_string(own.rank) +
              " in " + name(own.mode);
    else if (card.layout != own.layout || card.segment.bytes != own.segment.bytes)
      wrong = "the memory of rank " + std::to_string(r) + " is laid out otherwise than that of rank " +
              std::to_string(own.rank) + ": their settings differ";
    if (wrong.empty()) continue;
    refuse(Cause::mismatch, wrong, error);
    error.rank = r, error.reporter = own.rank;
    return false;
  }
  return true;
}

bool import_segments(DeviceRuntime& runtime, const std::vector<DeviceCard>& cards, int rank, char* own,
                     std::vector<PeerMemory>& peers, std::vector<char*>& segments, Error& error) {
  for (const DeviceCard& card : cards) {
    if (card.rank == rank) {
      segments.push_back(own);
      continue;
    }
    peers.push_back(peer_memory(runtime, card.segment, error));
    if (!peers.back()) {
      error.peer = card.rank, error.reporter = rank;
      peers.clear(), segments.clear();
      return false;
    }
    segments.push_back(peers.back()->data);
  }
  return true;
}

}  // namespace ringcomm::cuda
