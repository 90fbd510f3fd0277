// Verbs without hardware: devices of RoCE in this process, behind the same table of functions as libibverbs. A thread of its own moves the data, as a NIC does: in
// the order of each queue pair, at any time after the posting, so what is written or reused too soon shows (to ThreadSanitizer too).
//
// It holds its callers to the rules: states, keys, ranges, receives, sequence numbers, room in queues. What a device would answer with a completion it
// answers so; room that the caller must keep itself (a completion queue that overflows) ends the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "connections/verbs_library.h"

namespace ringcomm::test {

// fake0 and fake1, both at port 1; GID 0 is link-local, 1 has an IPv4 address, 2 is of RoCE v1.
const VerbsLibrary& fake_verbs();

// As at the beginning: everything works, all counts are 0. Not while anything is under way.
void fake_reset();
// Nothing moves while it is held.
void fake_hold(bool held);
// Both cables of the device are cut: what it sends fails at once, what is sent to it after a while, as with soft RoCE. It reports PORT_ERR, and PORT_ACTIVE.
void fake_link(const std::string& device, bool up);
// The next work request of the device ends with this status.
void fake_fail_next(const std::string& device, int status);
// The planted fault: a write with immediate overtakes the writes before it, which are done once its completion has been taken.
void fake_overtake(bool on);
// The largest work request, from the next device that is opened; and how much may be inline, from the next queue pair.
void fake_most_bytes(uint32_t bytes);
void fake_most_inline(uint32_t bytes);
// Keys of memory that is registered from here on are good for nothing at the peer.
void fake_spoil_keys(bool on);
// From here on nothing can be registered: `limit` bytes at once at most.
void fake_most_registered(size_t limit);

struct FakeCounts {
  uint64_t requests = 0, carrying = 0;  // all, and those with bytes to move
  uint64_t bytes = 0, signaled = 0, with_immediate = 0, events = 0;
  uint64_t largest = 0;              // of one request
  int queue_pairs = 0, regions = 0;  // there are now
};
FakeCounts fake_counts();

}  // namespace ringcomm::test
