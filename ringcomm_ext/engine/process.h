// The engine of this process: made with the first group, never destroyed (its threads must not meet static destructors).
#pragma once

#include "engine/engine.h"

namespace ringcomm {

// How long an orderly end waits for what is pending.
inline constexpr int64_t kLeaveNs = 2'000'000'000;

Engine* process_engine();  // null before start_process_engine(), and in a forked child
// Starts it if it is not there; options of later calls are ignored. Null and `error` on failure.
Engine* start_process_engine(const EngineOptions& options, Error& error);
// True in a child of fork(): groups of the parent are not this process's.
bool forked();
// Interpreter exit: leaves every group, stops callbacks. Idempotent.
void stop_process_engine();

}  // namespace ringcomm
