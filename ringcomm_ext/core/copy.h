// Plain and cache-bypassing copies. Any thread; source and destination may not overlap; any alignment, any size.
#pragma once

#include <cstddef>

namespace ringcomm {

// memcpy: the destination is in this core's cache afterwards, for data that is read again soon.
void copy_cached(void* dst, const void* src, size_t n);

// Writes `dst` by non-temporal stores where the processor has them (core/isa.h chooses their width): no cache line of
// dst is read first, none is left in this core's cache, for results far larger than the cache. One store fence at
// the end, so a later release store publishes the copy as it would an ordinary one; worth its price from tens of KiB.
void copy_streaming(void* dst, const void* src, size_t n);

}  // namespace ringcomm
