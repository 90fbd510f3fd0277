// One collective on all ranks: inputs, what the host makes of them, the kernels' launches, and the comparison, byte by byte and with what lies around.
#pragma once

#include <functional>
#include <vector>

#include "host_reference.h"
#include "kernel_group.h"
#include "reduce_inputs.h"
#include "reduce_model.h"

namespace ringcomm::test {

using Plan = std::vector<std::vector<int32_t>>;  // tables by rank

struct Task {
  DType dtype = DType::float32;  // for the collectives that reduce
  ReduceOp op = ReduceOp::sum;
  size_t element = 4;  // for the others
  size_t size = 0;     // elements: of the message that is cut, else about that of a chunk
  size_t piece = 64;   // elements
  bool uneven = false, in_place = false, low_latency = false, sized_tags = false;
  size_t misaligned = 0;  // bytes, of every buffer
  double factor = 0;      // PREMUL_SUM where not 0
  uint32_t blocks = 1;
  uint32_t tag = 1;
};

inline bool reduces(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce || c == Collective::reduce_scatter;
}
inline bool cut(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce || c == Collective::broadcast;
}

// Chunks in one piece of memory, with guards around.
struct Chunks {
  std::vector<char> bytes;
  std::vector<size_t> at;
  std::vector<uint64_t> count;

  static Chunks make(const std::vector<uint64_t>& counts, size_t element, bool together, size_t misaligned) {
    constexpr size_t kGuard = 48;
    Chunks c;
    c.count = counts;
    size_t end = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (i == 0 || !together) end = (end + kGuard + 15) / 16 * 16 + misaligned;
      c.at.push_back(end);
      end += counts[i] * element;
    }
    c.bytes.assign(end + kGuard + 16, 0x5a);
    return c;
  }
  char* chunk(size_t i) { return bytes.data() + at[i]; }
  const char* chunk(size_t i) const { return bytes.data() + at[i]; }
  std::vector<Chunk> list() {
    std::vector<Chunk> all;
    for (size_t i = 0; i < at.size(); ++i) all.push_back({chunk(i), count[i]});
    return all;
  }
};

class Job {
 public:
  Job(const Plan& plan, const Task& task) : task_(task) {
    for (const auto& table : plan) {
      programs_.emplace_back();
      CHECK_EQ(Program::load(table.data(), table.size(), programs_.back()), "");
    }
    if (reduces(collective()))
      CHECK(cuda::reducing_kernel(task.dtype, task.op, choice_));
    else
      choice_ = cuda::moving_kernel(task.element);
    for (const Program& p : programs_) make_rank(p);
    host();
  }

  // The launch of one rank; its buffers are this object's.
  Launch launch(Loaded& loaded, int rank) {
    Rank& r = ranks_[static_cast<size_t>(rank)];
    Launch l;
    l.family = choice_.family, l.blocks = task_.blocks;
    l.call = loaded.call(task_.low_latency);
    cuda::KernelCall& c = l.call;
    if (task_.sized_tags) c.flags |= cuda::kCallSizedTags;
    if (task_.factor != 0) c.flags |= cuda::kCallPremultiplied, c.factor = task_.factor;
    c.element = static_cast<uint32_t>(choice_.element), c.variant = choice_.variant;
    c.op = static_cast<uint32_t>(choice_.op), c.piece = task_.piece, c.tag = task_.tag;
    c.in = device_chunks(r.in, r.in_list), c.out = device_chunks(r.out, r.out_list);
    if (task_.in_place) share(r, programs_[static_cast<size_t>(rank)], c);
    c.loops = cuda::loops_of(loaded.program(), c);
    return l;
  }
  // Once more from the start: for launches that run again.
  void reset() {
    for (Rank& r : ranks_) r.out.bytes = r.out_before;
  }
  void check(int rank) const {
    const Rank& r = ranks_[static_cast<size_t>(rank)];
    CHECK(r.in.bytes == r.in_before);
    if (r.out.bytes == r.expected.bytes) return;
    size_t i = 0;
    while (r.out.bytes[i] == r.expected.bytes[i]) ++i;
    std::fprintf(stderr, "rank %d of %zu, %s %s of %s, %zu elements, blocks %u%s%s: byte %zu of %zu differs\n", rank,
                 programs_.size(), name(collective()), name(task_.op), name(task_.dtype), task_.size, task_.blocks,
                 task_.in_place ? ", in place" : "", task_.low_latency ? ", low latency" : "", i, r.out.bytes.size());
    CHECK(false);
  }
  void check() const {
    for (size_t r = 0; r < ranks_.size(); ++r) check(static_cast<int>(r));
  }

 private:
  struct Rank {
    Chunks in, out, expected;
    std::vector<char> in_before, out_before;
    std::vector<cuda::DeviceChunk> in_list, out_list;
  };

  Collective collective() const { return programs_[0].collective; }
  uint64_t length(int i) const {
    return task_.uneven ? (i % 3 == 2 ? 0 : task_.size + 3 * static_cast<uint64_t>(i)) : task_.size;
  }
  uint64_t between(int from, int to) const {
    return task_.uneven ? ((from + to) % 4 == 3 ? 0 : task_.size + static_cast<uint64_t>(7 * from + to)) : task_.size;
  }
  uint64_t part(int chunks) const {
    const uint64_t step = std::max<uint64_t>(64 / choice_.element, 1), each = (task_.size + chunks - 1) / chunks;
    return (each + step - 1) / step * step;
  }

  std::vector<uint64_t> counts(const Program& p, bool in) const {
    std::vector<uint64_t> all;
    for (int c = 0; c < (in ? p.nchunks_in : p.nchunks_out); ++c) {
      if (cut(p.collective)) {
        const uint64_t each = part(in ? p.nchunks_in : p.nchunks_out), at = std::min<uint64_t>(task_.size, c * each);
        all.push_back(std::min(each, task_.size - at));
      } else if (p.collective == Collective::all_to_all) {
        all.push_back(in ? between(p.rank, c) : between(c, p.rank));
      } else {
        const bool whole = in == (p.collective == Collective::all_gather || p.collective == Collective::gather);
        all.push_back(length(whole ? p.rank : c));
      }
    }
    return all;
  }

  void make_rank(const Program& p) {
    Rank r;
    r.in = Chunks::make(counts(p, true), choice_.element, cut(p.collective), task_.misaligned);
    r.out = Chunks::make(counts(p, false), choice_.element, cut(p.collective), task_.misaligned);
    for (size_t c = 0; c < r.in.at.size(); ++c) {
      if (reduces(p.collective))
        inputs::fill(task_.dtype, r.in.chunk(c), r.in.count[c] * choice_.parts);
      else
        for (size_t i = 0; i < r.in.count[c] * choice_.element; ++i)
          r.in.chunk(c)[i] = static_cast<char>(inputs::generator());
    }
    r.expected = r.out, r.in_before = r.in.bytes;
    if (task_.in_place)
      for (size_t i = 0; i < r.in.at.size(); ++i)
        if (const int o = p.shared_out(static_cast<int>(i)); o >= 0)
          std::copy_n(r.in.chunk(i), r.in.count[i] * choice_.element, r.out.chunk(static_cast<size_t>(o)));
    r.out_before = r.out.bytes;
    ranks_.push_back(std::move(r));
  }

  // Multiplied in the tensor's type, as torch would have.
  void premultiply(Chunks& in) const {
    for (size_t c = 0; c < in.at.size(); ++c)
      for (uint64_t i = 0; i < in.count[c]; ++i) {
        char* const at = in.chunk(c) + i * choice_.element;
        const auto multiply = [&](auto value) {
          std::memcpy(&value, at, sizeof value);
          if constexpr (sizeof value == 2) {
            const model::Half half = task_.dtype == DType::float16 ? model::kFloat16 : model::kBFloat16;
            const float product =
                model::settle(static_cast<float>(model::decode(half, value)) * static_cast<float>(task_.factor));
            value = model::encode(half, product);
          } else {
            value = model::settle(value * static_cast<decltype(value)>(task_.factor));
          }
          std::memcpy(at, &value, sizeof value);
        };
        if (choice_.element == 2) multiply(uint16_t{});
        if (choice_.element == 4) multiply(float{});
        if (choice_.element == 8) multiply(double{});
      }
  }

  void host() {
    HostGroup group(programs_);
    std::vector<Chunks> ins;
    for (const Rank& r : ranks_) {
      ins.push_back(r.in);
      if (task_.factor != 0) premultiply(ins.back());
    }
    std::vector<Run> runs;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Run run;
      run.program = &programs_[r];
      run.in = ins[r].list(), run.out = ranks_[r].expected.list();
      run.dtype = task_.dtype, run.element = choice_.element, run.piece = task_.piece, run.tag = task_.tag;
      run.sized_tags = task_.sized_tags;
      if (reduces(collective())) {
        run.finish = reduce_function(task_.dtype, task_.op);
        run.reduce = reduce_function(task_.dtype, task_.op == ReduceOp::avg ? ReduceOp::sum : task_.op);
        CHECK(run.finish != nullptr);
      }
      runs.push_back(run);
    }
    group.run(std::move(runs));
  }

  // One message that is cut as a range, anything else as a list.
  cuda::DeviceChunks device_chunks(Chunks& c, std::vector<cuda::DeviceChunk>& list) const {
    if (cut(collective()) && !c.at.empty())
      return {c.chunk(0), task_.size, part(static_cast<int>(c.at.size())), nullptr};
    list.clear();
    for (size_t i = 0; i < c.at.size(); ++i) list.push_back({c.chunk(i), c.count[i]});
    return {nullptr, 0, 0, list.data()};
  }
  void share(Rank& r, const Program& p, cuda::KernelCall& c) const {
    if (cut(collective())) {
      if (p.nchunks_out > 0 && p.nchunks_in > 0) c.in.data = c.out.data;
      return;
    }
    for (size_t i = 0; i < r.in_list.size(); ++i)
      if (const int o = p.shared_out(static_cast<int>(i)); o >= 0)
        r.in_list[i].data = r.out_list[static_cast<size_t>(o)].data;
  }

  const Task task_;
  std::vector<Program> programs_;
  cuda::KernelChoice choice_;
  std::vector<Rank> ranks_;
};

}  // namespace ringcomm::test
