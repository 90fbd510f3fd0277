// Ranks of `memop` mode in one process over the fake driver, each with a stream. Since enqueuing waits for nothing, one thread enqueues for all.
#pragma once

#include <memory>
#include <vector>

#include "check.h"
#include "cuda/driver_runtime.h"
#include "cuda/enqueuer.h"
#include "cuda/kernels.h"
#include "cuda_shared.h"
#include "fake_cuda.h"
#include "patterns.h"

namespace ringcomm::test {

// One rank's part of one call of int32, its memory, and what must come out.
class EnqueuedMessage {
 public:
  EnqueuedMessage(cuda::DeviceRuntime& runtime, Pattern pattern, int ranks, int rank, size_t count, size_t piece,
                  int seed)
      : pattern_(pattern), ranks_(ranks), rank_(rank), count_(count), seed_(seed) {
    const Packed words = table_of(pattern, ranks, rank);
    CHECK_EQ(Program::load(words.data(), words.size(), program_), std::string());
    const size_t n = static_cast<size_t>(ranks);
    in_ = pattern == Pattern::all_to_all ? n * count : count;
    out_ = pattern == Pattern::all_to_all || pattern == Pattern::all_gather ? n * count : count;
    Error error;
    memory_ = cuda::pinned_memory(runtime, 4 * (in_ + out_) + 4, error);
    CHECK(memory_);
    call_.program = &program_;
    call_.element = 4, call_.piece = piece;
    call_.kernel = cuda::combine_name(cuda::Family::int32), call_.op = ReduceOp::sum;
    cut(call_.in, memory_->device, program_.nchunks_in, in_);
    cut(call_.out, memory_->device + 4 * in_, program_.nchunks_out, out_);
    fill_in(seed);
  }
  cuda::EnqueuedCall& call() { return call_; }

  // New inputs, and nothing in the outputs.
  void fill_in(int seed) {
    seed_ = seed;
    for (size_t i = 0; i < in_; ++i) words()[i] = value(rank_, i);
    std::memset(words() + in_, 0, 4 * out_);
  }
  void check() {
    for (size_t i = 0; i < out_; ++i)
      if (words()[in_ + i] != expected(i))
        fail("element " + std::to_string(i) + " of pattern " + std::to_string(static_cast<int>(pattern_)),
             words()[in_ + i], expected(i));
    for (size_t i = 0; i < in_; ++i) CHECK_EQ(words()[i], value(rank_, i));
  }

 private:
  void fail(const std::string& what, int has, int wants) {
    ::ringcomm::test::fail(__FILE__, __LINE__,
                           what + " of rank " + std::to_string(rank_) + " of " + std::to_string(ranks_) + ": " +
                               std::to_string(has) + ", not " + std::to_string(wants));
  }
  void cut(std::vector<cuda::EnqueuedChunk>& chunks, char* data, int parts, size_t count) const {
    const size_t part = parts ? (count + static_cast<size_t>(parts) - 1) / static_cast<size_t>(parts) : 0;
    for (size_t at = 0, k = 0; k < static_cast<size_t>(parts); ++k, at = std::min(at + part, count))
      chunks.push_back({data + 4 * at, std::min(part, count - at)});
  }
  int32_t* words() { return reinterpret_cast<int32_t*>(memory_->host); }
  int32_t value(int rank, size_t i) const {
    return static_cast<int32_t>((i + 1) * 2654435761u + static_cast<uint32_t>(rank * 1000003 + seed_ * 7919));
  }
  int32_t expected(size_t i) const {
    switch (pattern_) {
      case Pattern::all_gather:
        return value(static_cast<int>(i / count_), i % count_);
      case Pattern::all_to_all:
        return value(static_cast<int>(i / count_), static_cast<size_t>(rank_) * count_ + i % count_);
      case Pattern::broadcast:
        return value(ranks_ - 1, i);
      default: {
        uint32_t sum = 0;
        for (int r = 0; r < ranks_; ++r) sum += static_cast<uint32_t>(value(r, i));
        return static_cast<int32_t>(sum);
      }
    }
  }

  const Pattern pattern_;
  const int ranks_, rank_;
  const size_t count_;
  int seed_;
  size_t in_, out_;
  Program program_;
  cuda::PinnedMemory memory_;
  cuda::EnqueuedCall call_;
};

class EnqueuedGroup {
 public:
  explicit EnqueuedGroup(const cuda::EnqueuerShape& shape) : layout(shape) {
    Error error;
    runtime = cuda::DriverRuntime::open(fake_cuda(), 0, error);
    CHECK(runtime && runtime->load_kernels(fake_cuda_image(), cuda::kernel_names(), error));
    std::vector<cuda::RankSegments> segments;
    for (int r = 0; r < shape.ranks; ++r) {
      data_.push_back(cuda::device_memory(*runtime, layout.data_bytes() + 1, error));
      pages.push_back(std::make_unique<SharedPages>((layout.flag_bytes() + 4096) / 4096 * 4096));
      flags_.push_back(cuda::registered_memory(*runtime, pages.back()->at, pages.back()->bytes, error));
      streams.push_back(cuda::device_stream(*runtime, error));
      CHECK(data_.back() && flags_.back() && streams.back());
      segments.push_back({*data_.back(), flags_.back()->device});
    }
    for (int r = 0; r < shape.ranks; ++r)
      enqueuers.push_back(std::make_unique<cuda::Enqueuer>(*runtime, layout, r, segments));
  }
  int ranks() const { return layout.shape().ranks; }
  void enqueue(int rank, EnqueuedMessage& message) {
    Error error;
    CHECK_EQ(cuda::Enqueuer::refusal(layout, *message.call().program, message.call().piece * 4), std::string());
    if (!enqueuers[static_cast<size_t>(rank)]->enqueue(message.call(), *streams[static_cast<size_t>(rank)], error))
      fail(__FILE__, __LINE__, error.text);
  }
  void drain() {
    Error error;
    for (const auto& stream : streams)
      if (!runtime->drain(*stream, after_ms(60'000), error)) fail(__FILE__, __LINE__, error.text);
  }

  const cuda::EnqueuerLayout layout;
  std::unique_ptr<cuda::DriverRuntime> runtime;
  std::vector<std::unique_ptr<SharedPages>> pages;

 private:
  std::vector<cuda::DeviceMemory> data_;
  std::vector<cuda::RegisteredMemory> flags_;

 public:
  std::vector<cuda::DeviceStream> streams;
  std::vector<std::unique_ptr<cuda::Enqueuer>> enqueuers;
};

}  // namespace ringcomm::test
