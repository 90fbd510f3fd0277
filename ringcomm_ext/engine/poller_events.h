// What the poller's epoll set holds, told apart by its 64-bit tags. A tag without a kind is the number of a watched peer.
#pragma once
#include <sys/epoll.h>

#include <cstdint>

namespace ringcomm::poller {

constexpr uint64_t kListener = 1ull << 62, kStop = 2ull << 62, kConnection = 3ull << 62, kKind = 3ull << 62;
constexpr uint64_t kTimer = kStop | 1, kLoop = kStop | 2;

inline bool add_to_epoll(int epoll, int fd, uint64_t tag) {
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.u64 = tag;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

}  // namespace ringcomm::poller
