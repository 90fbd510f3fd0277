#include "c10d/widen.h"

#include <utility>

namespace ringcomm {
namespace {

size_t count_of(const std::vector<Chunk>& chunks) {
  size_t count = 0;
  for (const Chunk& c : chunks) count += c.count;
  return count;
}

// What the result of chunk `out` overwrites: programs serve in-place calls, so no second buffer is needed.
const Chunk& place_of(const Call& call, int rank, size_t out) {
  return call.collective == Collective::reduce_scatter ? call.in[static_cast<size_t>(rank)] : call.in[out];
}

}  // namespace

void Widened::widen(Call& call, int rank, std::vector<at::Tensor>& keep) {
  const HalfConversion* conversion = half_conversion(call.dtype);
  keep.push_back(at::empty({static_cast<int64_t>(count_of(call.in))}, at::kFloat));
  float* next = keep.back().data_ptr<float>();
  for (Chunk& c : call.in) {
    conversion->widen(next, c.data, c.count);
    c.data = reinterpret_cast<char*>(next);
    next += c.count;
  }
  for (size_t i = 0; i < call.out.size(); ++i) {
    const Chunk narrow = std::exchange(call.out[i], place_of(call, rank, i));
    results_.push_back({conversion, call.out[i], narrow});
  }
  call.widened = true;
}

void Widened::narrow() const {
  for (const Result& r : results_)
    r.conversion->narrow(r.narrow.data, reinterpret_cast<const float*>(r.wide.data), r.wide.count);
}

}  // namespace ringcomm
