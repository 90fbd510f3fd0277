// 16-bit floats that travel between ranks as float32, so that a result is rounded once (docs/numerics.md).
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "core/reduce.h"
#include "engine/communicator.h"

namespace ringcomm {

// The float32 results of one launch's calls. Any thread, one at a time.
class Widened {
 public:
  // Gives an all_reduce, reduce or reduce_scatter of 16-bit floats a float32 copy of its input to work in, whose memory joins `keep`; `rank`: this one.
  void widen(Call& call, int rank, std::vector<at::Tensor>& keep);
  bool any() const { return !results_.empty(); }
  // After success: rounds the results into the callers' memory. Both must still be there.
  void narrow() const;

 private:
  struct Result {
    const HalfConversion* conversion;
    Chunk wide, narrow;  // of equal count
  };
  std::vector<Result> results_;
};

}  // namespace ringcomm
