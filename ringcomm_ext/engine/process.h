// The engine of this process: made with the first group, never destroyed (its threads must not meet static destructors).
#pragma once

#include "engine/engine.h"

namespace ringcomm {

// How long an orderly end waits for what is pending.
inline constexpr int64_t kLeaveNs = 2'000'000'000;

Engine* process_engine();  // null before start_process_engine(), and in a forked child
// Starts it if it is not there, with the process's heap (`options.heap` is ignored); options of later calls are ignored. Null and `error` on failure.
Engine* start_process_engine(const EngineOptions& options, Error& error);
// The registered memory of this process: made once, by whoever needs it first, never destroyed. Null before that, and in a forked child until it
// makes its own: what it inherited is its parent's.
Heap* process_heap();
Heap* start_process_heap(size_t limit, Error& error);
// The heap, own or inherited, in which `data` lies, or null.
Heap* heap_of(const void* data);
// True in a child of fork(): groups of the parent are not this process's.
bool forked();
// Interpreter exit: leaves every group, stops callbacks. Idempotent.
void stop_process_engine();

}  // namespace ringcomm
