// The short kernels of `memop` mode, launched by the driver runtime over the fake driver: the bits of core/reduce for every type and operation, any alignment, in place, for several targets; inputs that count
// `factor` times; bytes around the targets untouched.
#include "check.h"
#include "core/reduce.h"
#include "cuda/combine_call.h"
#include "cuda/driver_runtime.h"
#include "cuda/kernels.h"
#include "fake_cuda.h"
#include "reduce_inputs.h"
#include "reduce_model.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr size_t kGuard = 64;
using Bytes = std::vector<char>;

// Memory that the kernels reach and the host reads: sources and targets one behind the other, guards around each.
class Arena {
 public:
  Arena(cuda::DeviceRuntime& runtime, size_t bytes) {
    Error error;
    memory_ = cuda::pinned_memory(runtime, bytes, error);
    CHECK(memory_);
    std::memset(memory_->host, 0x5a, bytes);
  }
  // Where `bytes` may go, `misaligned` past a multiple of 16.
  size_t take(size_t bytes, size_t misaligned) {
    const size_t at = (end_ + 15) / 16 * 16 + kGuard + misaligned;
    end_ = at + bytes;
    CHECK(end_ + kGuard <= memory_->bytes);
    return at;
  }
  char* host(size_t at) { return memory_->host + at; }
  char* device(size_t at) { return memory_->device + at; }
  Bytes all() const { return Bytes(memory_->host, memory_->host + memory_->bytes); }

 private:
  cuda::PinnedMemory memory_;
  size_t end_ = 0;
};

struct Combination {
  cuda::KernelChoice choice;
  std::vector<Bytes> sources;
  int targets = 1;
  int in_place = -1;  // the source that is the first target
  uint32_t divisor = 0;
  double factor = 1;
  uint64_t scaled[2] = {};
  size_t misaligned = 0;
  unsigned blocks = 1, threads = 1;
};

class Device {
 public:
  Device() {
    Error error;
    runtime_ = cuda::DriverRuntime::open(fake_cuda(), 0, error);
    CHECK(runtime_ && runtime_->load_kernels(fake_cuda_image(), cuda::kernel_names(), error));
    stream_ = cuda::device_stream(*runtime_, error);
  }
  // The one target's bytes are `expected`, and the others'; nothing else has changed.
  void check(const Combination& c, const Bytes& expected, const std::string& what) {
    const size_t bytes = expected.size();
    Arena arena(*runtime_, (c.sources.size() + static_cast<size_t>(c.targets) + 1) * (bytes + 2 * kGuard + 32));
    cuda::CombineCall call = {};
    std::vector<size_t> targets;
    for (const Bytes& source : c.sources) {
      const size_t at = arena.take(bytes, (c.misaligned * static_cast<size_t>(call.nsources + 1)) % 16);
      if (bytes) std::memcpy(arena.host(at), source.data(), bytes);
      if (call.nsources == c.in_place) targets.push_back(at);
      call.sources[call.nsources++] = arena.device(at);
    }
    while (targets.size() < static_cast<size_t>(c.targets)) targets.push_back(arena.take(bytes, c.misaligned));
    for (size_t at : targets) call.targets[call.ntargets++] = arena.device(at);
    call.count = bytes / c.choice.element, call.factor = c.factor, call.divisor = c.divisor;
    call.op = static_cast<uint32_t>(c.choice.op), call.variant = c.choice.variant;
    call.scaled[0] = c.scaled[0], call.scaled[1] = c.scaled[1];
    Bytes all = arena.all();
    for (size_t at : targets) std::copy(expected.begin(), expected.end(), all.begin() + static_cast<long>(at));
    Error error;
    if (!runtime_->launch(cuda::combine_name(c.choice.family), c.blocks, c.threads, &call, *stream_, error) ||
        !runtime_->drain(*stream_, after_ms(60'000), error))
      fail(__FILE__, __LINE__, error.text);
    if (arena.all() != all) fail(__FILE__, __LINE__, what + ": other bytes");
  }

 private:
  std::unique_ptr<cuda::DriverRuntime> runtime_;
  cuda::DeviceStream stream_;
};

std::vector<Bytes> inputs_of(DType dtype, int n, size_t count) {
  std::vector<Bytes> all(static_cast<size_t>(n), Bytes(count * element_size(dtype)));
  for (Bytes& s : all) inputs::fill(dtype, s.data(), count);
  return all;
}

Bytes host_result(ReduceFn reduce, const std::vector<Bytes>& sources, size_t count, int divisor) {
  std::vector<const void*> pointers;
  for (const Bytes& s : sources) pointers.push_back(s.data());
  Bytes result(sources[0].size());
  reduce(result.data(), pointers.data(), static_cast<int>(sources.size()), count, divisor);
  return result;
}

void arithmetic(Device& device) {
  section("every type and operation, 2 to 128 sources: the bits of core/reduce");
  Random random(3);
  for (int t = 0; t < kReducibleDTypes; ++t)
    for (int o = 0; o < kReduceOps; ++o) {
      const DType dtype = static_cast<DType>(t);
      const ReduceOp op = static_cast<ReduceOp>(o);
      Combination c;
      const ReduceFn host = reduce_function(dtype, op);
      CHECK_EQ(cuda::reducing_kernel(dtype, op, c.choice), host != nullptr);
      for (int n : {2, 3, 4, 5, 7, 8, 13, 32, cuda::kMostCombined}) {
        if (host == nullptr) continue;
        const size_t counts[] = {0, 1, 15, 333, 1 + random.below(1000)};
        const size_t count = counts[random.below(std::size(counts))];
        c.sources = inputs_of(dtype, n, count);
        c.targets = random.one_in(3) ? 1 + static_cast<int>(random.below(4)) : 1;
        c.in_place = random.one_in(2) ? static_cast<int>(random.below(static_cast<size_t>(n))) : -1;
        c.misaligned = random.one_in(2) ? random.below(16) : 0;
        c.blocks = 1 + static_cast<unsigned>(random.below(3)), c.threads = 1 + static_cast<unsigned>(random.below(40));
        c.divisor = op == ReduceOp::avg ? static_cast<uint32_t>(n) : 0;
        device.check(c, host_result(host, c.sources, count, n),
                     std::string(name(dtype)) + " " + name(op) + ", " + std::to_string(n) + " sources");
      }
    }
}

// In the type, as torch would have.
void multiply(DType dtype, Bytes& bytes, double factor) {
  const size_t size = element_size(dtype);
  for (size_t at = 0; at < bytes.size(); at += size) {
    const auto each = [&](auto value) {
      std::memcpy(&value, &bytes[at], sizeof value);
      if constexpr (sizeof value == 2) {
        const model::Half half = dtype == DType::float16 ? model::kFloat16 : model::kBFloat16;
        value = model::encode(
            half, model::settle(static_cast<float>(model::decode(half, value)) * static_cast<float>(factor)));
      } else {
        value = model::settle(value * static_cast<decltype(value)>(factor));
        if (value != value) value = std::numeric_limits<decltype(value)>::quiet_NaN();  // the one that kernels give
      }
      std::memcpy(&bytes[at], &value, sizeof value);
    };
    if (size == 2) each(uint16_t{});
    if (size == 4) each(float{});
    if (size == 8) each(double{});
  }
}

void factors(Device& device) {
  section("sources that count `factor` times, some or all; one that is only scaled; an average of them");
  Random random(4);
  for (DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64})
    for (int n : {1, 2, 5, 70, cuda::kMostCombined}) {
      const size_t count = 1 + random.below(300);
      Combination c;
      const ReduceOp op = random.one_in(2) && n > 1 ? ReduceOp::avg : ReduceOp::sum;
      CHECK(cuda::reducing_kernel(dtype, op, c.choice));
      c.sources = inputs_of(dtype, n, count);
      c.factor = 0.3, c.threads = 5, c.blocks = 2;
      c.divisor = op == ReduceOp::avg ? static_cast<uint32_t>(n) : 0;
      std::vector<Bytes> multiplied = c.sources;
      for (int k = 0; k < n; ++k)
        if (n == 1 || random.one_in(2)) {
          c.scaled[k / 64] |= uint64_t{1} << (k % 64);
          multiply(dtype, multiplied[static_cast<size_t>(k)], c.factor);
        }
      const Bytes expected = n == 1 ? multiplied[0] : host_result(reduce_function(dtype, op), multiplied, count, n);
      device.check(c, expected, std::string(name(dtype)) + ", " + std::to_string(n) + " sources, a factor");
    }
}

}  // namespace

int main() {
  start("cuda_combine_test", 240);
  {
    Device device;
    arithmetic(device);
    factors(device);
  }
  CHECK_EQ(fake_cuda_misuse(), std::string());
  CHECK(fake_cuda_live().none());
  return 0;
}
