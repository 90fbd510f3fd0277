// Calls whose inputs and outputs share memory in another way than programs allow (docs/program.md, "in place").
#pragma once

#include <ATen/ATen.h>
#include <c10/util/FunctionRef.h>

#include <vector>

#include "engine/communicator.h"

namespace ringcomm {

// Replaces every input chunk that some output of this rank would overwrite before it is read by a copy, whose memory joins `keep`. The in-place
// pairs that every program serves are left alone.
void separate(Call& call, int rank, std::vector<at::Tensor>& keep);

// The same for memory of any device, `copy(to, from, bytes)` being how it is copied there.
void separate(Call& call, int rank, std::vector<at::Tensor>& keep, c10::Device device,
              c10::function_ref<void(char*, const char*, size_t)> copy);

}  // namespace ringcomm
