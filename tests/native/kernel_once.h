// One reduction on one rank: all sources are its own.
#pragma once

#include "kernel_group.h"
#include "programs.h"

namespace ringcomm::test {

inline Packed own_sources(int sources) {
  Table t(Collective::reduce_scatter, sources, 0, sources, 1);
  std::vector<int32_t> all;
  for (int s = 0; s < sources; ++s) all.push_back(in(s));
  return t.step(Opcode::reduce, out(0), all, {}, {out(0), 0, true}).pack();
}

// Runs one reduction of `sources` arrays on one rank.
inline std::vector<char> reduce_once(const cuda::KernelChoice& choice, std::vector<std::vector<char>>& sources,
                                     size_t count, size_t misaligned) {
  const int n = static_cast<int>(sources.size());
  KernelGroup group({n, 1, 4, 16, 0}, 3);  // no slot is used
  const auto loaded = group.load(own_sources(n));
  std::vector<char> result(count * choice.element + misaligned + 16);
  std::vector<cuda::DeviceChunk> ins, outs = {{result.data() + misaligned, count}};
  for (auto& s : sources) ins.push_back({s.data(), count});
  Launch l;
  l.family = choice.family;
  l.call = loaded->call(false);
  l.call.element = static_cast<uint32_t>(choice.element), l.call.variant = choice.variant;
  l.call.op = static_cast<uint32_t>(choice.op), l.call.piece = 4096 / choice.element;
  l.call.in = {nullptr, 0, 0, ins.data()}, l.call.out = {nullptr, 0, 0, outs.data()};
  l.call.loops = cuda::loops_of(loaded->program(), l.call);
  std::vector<std::vector<Launch>> launches(static_cast<size_t>(n));
  launches[0] = {l};
  group.run(std::move(launches));
  result.erase(result.begin(), result.begin() + static_cast<long>(misaligned));
  result.resize(count * choice.element);
  return result;
}

}  // namespace ringcomm::test
