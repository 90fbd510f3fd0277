// Between torch's tensors and the core's flat memory (c10d/dtypes.h has the element types). Throws torch's exceptions on a caller's mistake.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "c10d/dtypes.h"
#include "core/interpreter.h"

namespace ringcomm {

// input * factor for PREMUL_SUM, else the input itself.
at::Tensor premultiply(const c10d::ReduceOp& op, const at::Tensor& input);

void check_tensor(const at::Tensor& tensor, const char* what, const char* argument);
void check_same_type(const at::Tensor& tensor, const at::Tensor& reference, const char* what, const char* argument);

// Memory the core may read: the tensor's own where it is flat, else a flat copy. The returned tensor owns it.
at::Tensor flat_input(const at::Tensor& tensor);
bool is_flat(const at::Tensor& tensor);

Chunk chunk_of(const at::Tensor& flat);

// Flat memory the core may write; for strided tensors a stand-in, which copy_back() brings home.
class Outputs {
 public:
  // `keep_values`: the stand-in starts with the tensor's values (in-place operations). Throws where elements of the tensor share memory.
  at::Tensor flat(const at::Tensor& given, bool keep_values, const char* what);
  bool needs_copy_back() const { return !staged_.empty(); }
  void copy_back() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> staged_;  // (the user's, the stand-in)
};

}  // namespace ringcomm
