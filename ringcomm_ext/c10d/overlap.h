// Calls whose inputs and outputs share memory in another way than programs allow (docs/program.md, "in place").
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "engine/communicator.h"

namespace ringcomm {

// Replaces every input chunk that some output of this rank would overwrite before it is read by a copy, whose memory joins `keep`. The in-place
// pairs that every program serves are left alone.
void separate(Call& call, int rank, std::vector<at::Tensor>& keep);

}  // namespace ringcomm
