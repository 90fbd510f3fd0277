// The kernels of kernels.cu, compiled for the host: what the fake driver finds in a module where a test has registered nothing by that name. The interpreter's threads are
// threads, all of a launch at once, as it needs; the short kernels' wait for nobody, so one thread is all of them, one after the other.
#include <memory>
#include <thread>

#include "cuda/emulated_context.h"
#include "cuda/families.h"
#include "fake_gpu.h"

namespace ringcomm::test::gpu {
namespace {

using cuda::BlockShared;
using Block = cuda::EmulatedBlock<BlockShared>;
// A type of this file: a program that plants a bug in the kernels (cuda_*_planted.cpp) has templates of its own.
struct Context : cuda::EmulatedContext<BlockShared> {};

template <class Format>
void interpret(const FakeLaunch& launch) {
  const auto& call = *static_cast<const cuda::KernelCall*>(launch.parameter);
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::thread> threads;
  for (unsigned b = 0; b < launch.blocks; ++b) blocks.push_back(std::make_unique<Block>(launch.threads));
  for (unsigned b = 0; b < launch.blocks; ++b)
    for (unsigned t = 0; t < launch.threads; ++t)
      threads.emplace_back([&, b, t] {
        Context context{{t, launch.threads, b, launch.blocks, blocks[b].get()}};
        cuda::KernelInterpreter<Format, Context>(context, call).run();
      });
  for (std::thread& thread : threads) thread.join();
}

template <class Format>
void combine(const FakeLaunch& launch) {
  const auto& call = *static_cast<const cuda::CombineCall*>(launch.parameter);
  for (unsigned b = 0; b < launch.blocks; ++b)
    for (unsigned t = 0; t < launch.threads; ++t)
      cuda::combine<Format>(Context{{t, launch.threads, b, launch.blocks, nullptr}}, call);
}

}  // namespace

std::map<std::string, cu::Function>& real_kernels() {
  static auto& all = *new std::map<std::string, cu::Function>{
#define INTERPRETER(name, Format) \
  {"ringcomm_" #name, {"ringcomm_" #name, sizeof(cuda::KernelCall), interpret<cuda::Format>}},
#define COMBINE(name, Format) \
  {"ringcomm_combine_" #name, {"ringcomm_combine_" #name, sizeof(cuda::CombineCall), combine<cuda::Format>}},
      RINGCOMM_FAMILIES(INTERPRETER) RINGCOMM_REDUCING_FAMILIES(COMBINE)};
  return all;
}

}  // namespace ringcomm::test::gpu
