// One rank's part of one call of a DeviceGroup, its memory on the device and on the host, and what must come out: numbers that every dtype holds exactly, so that the order of a sum does not matter. Bits are cuda_kernel_test's subject.
#pragma once

#include "check.h"
#include "cuda/device_group.h"
#include "patterns.h"
#include "reduce_model.h"

namespace ringcomm::test {

struct MessageKind {
  Pattern pattern = Pattern::ring;
  DType dtype = DType::int32;
  ReduceOp op = ReduceOp::sum;
  size_t count = 0;    // elements, of a chunk where the pattern moves chunks of ranks
  bool apart = false;  // chunks lie apart from each other
  int seed = 0;
  int factor = 1;  // by which every input of a reduction of floats counts
};

class GroupMessage {
 public:
  GroupMessage(cuda::DeviceRuntime& runtime, cuda::DeviceGroup& group, int ranks, int rank, const MessageKind& kind)
      : kind_(kind), ranks_(ranks), rank_(rank), size_(element_size(kind.dtype)) {
    Error error;
    const Packed table = table_of(kind.pattern, ranks, rank);
    Program program;
    CHECK_EQ(Program::load(table.data(), table.size(), program), std::string());
    call.program = group.load(table, error);
    if (call.program < 0) fail(__FILE__, __LINE__, error.text);
    const bool reduces = program.collective == Collective::all_reduce;
    if (reduces)
      CHECK(cuda::reducing_kernel(kind.dtype, kind.op, call.kernel));
    else
      call.kernel = cuda::moving_kernel(size_);
    if (!reduces || call.kernel.family < cuda::Family::float16) kind_.factor = 1;
    call.premultiplied = kind_.factor != 1, call.factor = kind_.factor;
    call.uneven = kind.pattern == Pattern::all_gather || kind.pattern == Pattern::all_to_all;
    const size_t n = static_cast<size_t>(ranks);
    in_ = kind.pattern == Pattern::all_to_all ? n * kind.count : kind.count;
    out_ = kind.pattern == Pattern::all_to_all || kind.pattern == Pattern::all_gather ? n * kind.count : kind.count;
    place(program.nchunks_in, in_, ins_), place(program.nchunks_out, out_, outs_);
    memory_ = cuda::pinned_memory(runtime, std::max<size_t>(end_, 1), error);
    device_ = cuda::device_memory(runtime, std::max<size_t>(end_, 1), error);
    if (!memory_ || !device_) fail(__FILE__, __LINE__, error.text);
    for (const Part& p : ins_) call.in.push_back({*device_ + p.at, p.count});
    for (const Part& p : outs_) call.out.push_back({*device_ + p.at, p.count});
    fill_in(kind.seed);
  }

  // To the device and back, in front of a call and behind it.
  bool send(cuda::DeviceRuntime& runtime, cuda::StreamHandle stream, Error& error) const {
    return runtime.copy(*device_, memory_->device, memory_->bytes, stream, error);
  }
  bool fetch(cuda::DeviceRuntime& runtime, cuda::StreamHandle stream, Error& error) const {
    return runtime.copy(memory_->device, *device_, memory_->bytes, stream, error);
  }
  // New inputs, and nothing in the outputs.
  void fill_in(int seed) {
    kind_.seed = seed;
    std::memset(memory_->host, 0, memory_->bytes);
    each(ins_, [&](size_t i, char* at) { put(value(rank_, i), at); });
  }
  void check() const {
    each(outs_, [&](size_t i, const char* at) {
      char wanted[8];
      put(expected(i), wanted);
      if (std::memcmp(at, wanted, size_) != 0)
        fail(__FILE__, __LINE__,
             "element " + std::to_string(i) + " of " + std::to_string(out_) + ", pattern " + name(kind_.pattern) +
                 ", " + name(kind_.dtype) + " " + name(kind_.op) + ", rank " + std::to_string(rank_) + " of " +
                 std::to_string(ranks_));
    });
  }

  cuda::DeviceCall call;

 private:
  struct Part {
    size_t at, count;  // bytes, elements
  };
  void place(int parts, size_t count, std::vector<Part>& to) {
    const size_t part = parts ? (count + static_cast<size_t>(parts) - 1) / static_cast<size_t>(parts) : 0;
    for (size_t first = 0, k = 0; k < static_cast<size_t>(parts); ++k) {
      const size_t here = std::min(part, count - first);
      to.push_back({end_, here});
      end_ += here * size_ + (kind_.apart ? 48 : 0), first += here;
    }
    end_ = (end_ + 15) / 16 * 16;
  }
  template <typename Each>
  void each(const std::vector<Part>& parts, const Each& f) const {
    size_t i = 0;
    for (const Part& p : parts)
      for (size_t k = 0; k < p.count; ++k) f(i++, memory_->host + p.at + k * size_);
  }
  // 0 to 7, times the ranks where an average must be exact.
  int value(int rank, size_t i) const {
    const int small = static_cast<int>((i * 2654435761u + static_cast<size_t>(rank * 7 + kind_.seed * 13)) >> 7 & 7);
    return kind_.op == ReduceOp::avg ? small * ranks_ : small;
  }
  int expected(size_t i) const {
    const auto per = kind_.count;
    switch (kind_.pattern) {
      case Pattern::all_gather:
        return value(static_cast<int>(i / per), i % per);
      case Pattern::all_to_all:
        return value(static_cast<int>(i / per), static_cast<size_t>(rank_) * per + i % per);
      case Pattern::broadcast:
        return value(ranks_ - 1, i);
      default: {
        int all = value(0, i);
        for (int r = 1; r < ranks_; ++r)
          all = kind_.op == ReduceOp::max ? std::max(all, value(r, i)) : all + value(r, i);
        return kind_.factor * (kind_.op == ReduceOp::avg ? all / ranks_ : all);
      }
    }
  }
  void put(int v, char* to) const {
    const auto as = [&](auto typed) { std::memcpy(to, &typed, sizeof typed); };
    switch (kind_.dtype) {
      case DType::uint8:
        return as(static_cast<uint8_t>(v));
      case DType::int32:
        return as(static_cast<int32_t>(v));
      case DType::int64:
        return as(static_cast<int64_t>(v));
      case DType::float32:
        return as(static_cast<float>(v));
      case DType::float64:
        return as(static_cast<double>(v));
      case DType::float16:
        return as(model::encode(model::kFloat16, static_cast<float>(v)));
      default:
        CHECK(kind_.dtype == DType::bfloat16);
        return as(model::encode(model::kBFloat16, static_cast<float>(v)));
    }
  }

  MessageKind kind_;
  const int ranks_, rank_;
  const size_t size_;
  size_t in_, out_, end_ = 0;
  std::vector<Part> ins_, outs_;
  cuda::PinnedMemory memory_;
  cuda::DeviceMemory device_;
};

inline MessageKind random_kind(Random& random, size_t most) {
  constexpr DType kTypes[] = {DType::uint8,   DType::int32,   DType::int64,   DType::float32,
                              DType::float64, DType::float16, DType::bfloat16};
  constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::max};
  MessageKind kind;
  kind.pattern = static_cast<Pattern>(random.below(kPatterns));
  kind.dtype = kTypes[random.below(std::size(kTypes))];
  kind.op = kOps[random.below(std::size(kOps))];
  kind.count = random.one_in(6) ? random.below(2) : random.below(most);
  kind.apart = random.one_in(2);
  kind.factor = random.one_in(3) ? 3 : 1;
  kind.seed = static_cast<int>(random.below(100));
  return kind;
}

}  // namespace ringcomm::test
