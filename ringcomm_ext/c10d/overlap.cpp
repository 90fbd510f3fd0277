#include "c10d/overlap.h"

#include <algorithm>
#include <cstring>

namespace ringcomm {
namespace {

bool overlap(const Chunk& a, const Chunk& b, size_t element) {
  return a.count && b.count && a.data < b.data + b.count * element && b.data < a.data + a.count * element;
}

// One chunk that spans all of them: ranks are many and overlaps rare, so look at the whole first.
Chunk span(const std::vector<Chunk>& chunks, size_t element) {
  char *first = nullptr, *last = nullptr;
  for (const Chunk& c : chunks) {
    if (c.count == 0) continue;
    if (!first || c.data < first) first = c.data;
    last = std::max(last, c.data + c.count * element);
  }
  return {first, (static_cast<size_t>(last - first) + element - 1) / element};
}

bool in_place(const Call& call, int rank, size_t in, size_t out) {
  const auto mine = static_cast<size_t>(rank);
  const bool same = call.in[in].data == call.out[out].data && call.in[in].count == call.out[out].count;
  switch (call.collective) {
    case Collective::all_gather:
    case Collective::gather:
      return same && out == mine;
    case Collective::reduce_scatter:
    case Collective::scatter:
      return same && in == mine;
    case Collective::all_to_all:
      return false;
    default:  // one message: the same memory, or memory that premultiply() made
      return true;
  }
}

bool overwritten(const Call& call, int rank, size_t in) {
  for (size_t out = 0; out < call.out.size(); ++out)
    if (overlap(call.in[in], call.out[out], call.element) && !in_place(call, rank, in, out)) return true;
  return false;
}

}  // namespace

void separate(Call& call, int rank, std::vector<at::Tensor>& keep) {
  separate(call, rank, keep, c10::kCPU, [](char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); });
}

void separate(Call& call, int rank, std::vector<at::Tensor>& keep, c10::Device device,
              c10::function_ref<void(char*, const char*, size_t)> copy) {
  if (!overlap(span(call.in, call.element), span(call.out, call.element), call.element)) return;
  for (size_t i = 0; i < call.in.size(); ++i) {
    if (!overwritten(call, rank, i)) continue;
    const size_t bytes = call.in[i].count * call.element;
    keep.push_back(at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device)));
    copy(static_cast<char*>(keep.back().data_ptr()), call.in[i].data, bytes);
    call.in[i].data = static_cast<char*>(keep.back().data_ptr());
  }
}

}  // namespace ringcomm
