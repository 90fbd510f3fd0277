// What a kernel wrote when it gave up, as an Error.
#pragma once

#include "core/status.h"
#include "cuda/kernel_call.h"

namespace ringcomm::cuda {

// True and `error` where a block of these has given up. Of several the one that says most: another call's slot, then a timeout, then an abort.
bool failure_of(const Failure* failures, int blocks, int rank, Error& error);

}  // namespace ringcomm::cuda
