// Collectives against sums of the host: every pattern, dtype and size; random ones many times over; and the end of calls that a rank does not come to.
#include "gpu_check.h"

namespace ringcomm::gpu_check {
namespace {

using namespace ringcomm::cuda;
using test::GroupRank;
using test::GroupSpec;
using test::MessageKind;

constexpr DType kTypes[] = {DType::float32, DType::float16, DType::bfloat16,
                            DType::float64, DType::int64,   DType::uint8};

// Blocks of all ranks must be on the device at once: 4 ranks of 8 blocks are, on any that is in use.
GroupSpec spec_of(const Options& options, DeviceMode mode) {
  if (options.small) return {mode, options.ranks, 2, 512, 2};
  return {mode, options.ranks, 8, 1 << 20, 512};
}

std::vector<size_t> sizes(const Options& options) {
  if (options.small) return {1, 15, 300};
  return {1, 15, 4 * 1024 + 3, 1 << 20};
}

void low_latency(DeviceCall& call, bool is) {
  call.low_latency = is;
  if (is) call.piece = std::max<size_t>(call.piece / 2, 1);
}

// All ranks' memory is there until nobody's stream waits for anybody.
void check(GroupRank& rank, std::vector<std::unique_ptr<test::GroupMessage>>& all) {
  rank.drain();
  for (const auto& message : all) message->check();
  rank.meet();
  all.clear();
  rank.meet();
}

// For each pattern all dtypes and both forms under way at once.
int all_kinds(GroupRank& rank, const Options& options) {
  int calls = 0;
  for (size_t size : sizes(options))
    for (int pattern = 0; pattern < test::kPatterns; ++pattern) {
      std::vector<std::unique_ptr<test::GroupMessage>> all;
      for (DType dtype : kTypes)
        for (bool low : {false, true}) {
          if (low && rank.spec.mode == DeviceMode::memop) continue;
          MessageKind kind;
          kind.pattern = static_cast<test::Pattern>(pattern), kind.dtype = dtype, kind.count = size;
          kind.apart = low, kind.seed = calls;
          all.push_back(rank.message(kind));
          low_latency(all.back()->call, low);
          all.back()->call.tag = static_cast<uint32_t>(++calls);
        }
      rank.meet();  // all programs are loaded before a kernel spins
      for (const auto& message : all) rank.enqueue(*message);
      check(rank, all);
    }
  return calls;
}

}  // namespace

void results(const Options& options, DeviceMode mode, Figures& figures) {
  int calls = 0;
  test::in_threads(options.machine, spec_of(options, mode), [&](GroupRank& rank) {
    const int made = all_kinds(rank, options);
    if (rank.rank == 0) calls = made;
  });
  figures.add("calls", calls);
}

void process_results(const Options& options, Figures& figures) {
  for (int ranks : {2, options.ranks}) {
    GroupSpec spec = spec_of(options, DeviceMode::memop);
    spec.ranks = ranks;
    test::in_processes(options.machine, spec, [&](GroupRank& rank) { all_kinds(rank, options); });
  }
  figures.add("ranks", "2 and " + std::to_string(options.ranks));
}

void repeats(const Options& options, DeviceMode mode, Figures& figures) {
  const int calls = options.small ? 60 : 1000, batch = 20;
  test::in_threads(options.machine, spec_of(options, mode), [&](GroupRank& rank) {
    test::Random random(11);
    for (int k = 0; k < calls; k += batch) {
      std::vector<std::unique_ptr<test::GroupMessage>> all;
      for (int i = 0; i < batch; ++i) {
        all.push_back(rank.message(test::random_kind(random, options.small ? 300 : 200'000)));
        low_latency(all.back()->call, random.one_in(2));
        all.back()->call.tag = static_cast<uint32_t>(k + i + 1);
      }
      rank.meet();
      for (const auto& message : all) rank.enqueue(*message);
      check(rank, all);
    }
  });
  figures.add("calls", calls);
}

// The last rank stays away.
void absent(const Options& options, DeviceMode mode, Figures& figures) {
  constexpr double kLimitMs = 2000;
  std::atomic<int64_t> slowest{0};
  test::in_threads(options.machine, spec_of(options, mode), [&](GroupRank& rank) {
    MessageKind kind;
    kind.count = options.small ? 300 : 1 << 20;
    const auto message = rank.message(kind);
    rank.meet();
    if (rank.rank != rank.spec.ranks - 1) {
      Error error;
      rank.enqueue(*message);
      if (rank.runtime->drain(*rank.stream, after_ms(50), error))
        test::fail(__FILE__, __LINE__, "a call was over before all ranks had come");
      const int64_t start = now_ns();
      rank.good(rank.group->end(*rank.stream, after_ms(10'000), error), error);
      const int64_t took = now_ns() - start;
      for (int64_t most = slowest; took > most && !slowest.compare_exchange_weak(most, took);) {
      }
      if (mode == DeviceMode::spin && !rank.group->look(error))
        test::fail(__FILE__, __LINE__, "the kernel left no record of whom it waited for");
    }
    rank.meet();
    // The context is as good as before: another call of the driver works.
    Error error;
    const DeviceMemory after = device_memory(*rank.runtime, 4096, error);
    rank.good(bool(after), error);
  });
  const double ms = static_cast<double>(slowest.load()) / 1e6;
  figures.add("ms until the slowest was done", ms);
  if (ms > kLimitMs) test::fail(__FILE__, __LINE__, "ending took " + std::to_string(ms) + " ms");
}

}  // namespace ringcomm::gpu_check
