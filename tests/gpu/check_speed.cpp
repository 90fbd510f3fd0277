// Copies, and calls in a row without checks: microseconds a call, gigabytes a second of the message and of counted memory traffic, and what the host spends.
#include <algorithm>

#include "gpu_check.h"

namespace ringcomm::gpu_check {
namespace {

using namespace ringcomm::cuda;
using test::GroupRank;
using test::Pattern;

void good(bool is, const Error& error) {
  if (!is) test::fail(__FILE__, __LINE__, error.text);
}

// One row: float32 all_reduce of so many bytes on each rank, by one program.
struct Row {
  size_t bytes;
  Pattern pattern;
  bool low;
  double median_us = 0, slowest_us = 0, host_us = 0;
};

std::vector<Row> rows(const Options& options, DeviceMode mode) {
  std::vector<Row> all;
  const std::vector<size_t> sizes =
      options.small ? std::vector<size_t>{64, 4096}
                    : std::vector<size_t>{1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20, 256 << 20};
  for (size_t bytes : sizes)
    for (Pattern pattern : {Pattern::one_shot, Pattern::two_shot, Pattern::ring})
      for (bool low : {false, true}) {
        if (low && (mode == DeviceMode::memop || bytes > 1 << 20)) continue;
        if (pattern == Pattern::one_shot && bytes > 16 << 20) continue;  // reads all ranks' messages
        all.push_back({bytes, pattern, low});
      }
  return all;
}

void measure(GroupRank& rank, Row& row, const Options& options) {
  Error error;
  const size_t count = row.bytes / 4;
  const DeviceMemory in = device_memory(*rank.runtime, row.bytes, error),
                     out = device_memory(*rank.runtime, row.bytes, error);
  good(in && out, error);
  const test::Packed table = test::table_of(row.pattern, rank.spec.ranks, rank.rank);
  Program program;
  CHECK_EQ(Program::load(table.data(), table.size(), program), std::string());
  DeviceCall call;
  call.program = rank.group->load(table, error);
  if (call.program < 0) good(false, error);
  CHECK(reducing_kernel(DType::float32, ReduceOp::sum, call.kernel));
  const size_t chunks = static_cast<size_t>(program.nchunks_in), part = (count + chunks - 1) / chunks;
  for (size_t k = 0, at = 0; k < chunks; ++k, at = std::min(at + part, count)) {
    call.in.push_back({*in + 4 * at, std::min(part, count - at)});
    call.out.push_back({*out + 4 * at, std::min(part, count - at)});
  }
  call.low_latency = row.low;
  call.piece = std::min(std::max<size_t>(part, 1), rank.spec.slot / 4 / (row.low ? 2 : 1));
  const int batches = options.small ? 2 : 20, calls = row.bytes < 1 << 20 ? (options.small ? 2 : 50) : 3;
  std::vector<double> us;
  double host = 0;
  for (int batch = -1; batch < batches; ++batch) {  // the first is not counted
    rank.meet();
    const int64_t start = now_ns();
    for (int k = 0; k < calls; ++k) {
      ++call.tag;
      good(rank.group->enqueue(call, *rank.stream, error), error);
    }
    const int64_t enqueued = now_ns();
    rank.drain();
    if (batch < 0) continue;
    us.push_back(static_cast<double>(now_ns() - start) / 1e3 / calls);
    host += static_cast<double>(enqueued - start) / 1e3 / calls / batches;
  }
  std::sort(us.begin(), us.end());
  row.median_us = us[us.size() / 2], row.slowest_us = us.back(), row.host_us = host;
  rank.meet();
}

// Bytes that pass the memory of one GPU that all N ranks share, per byte of a message: counted, not measured.
double traffic(Pattern pattern, double n) {
  if (pattern == Pattern::one_shot) return n * (3 + n);
  if (pattern == Pattern::two_shot) return n * (5 + 1 / n);
  return 0;
}

}  // namespace

void copy_rate(const Options& options, Figures& figures) {
  Error error;
  const auto runtime = DriverRuntime::open(options.machine.driver(), 0, error);
  good(runtime != nullptr, error);
  const size_t bytes = options.small ? 1 << 16 : size_t{1} << 30;
  const DeviceMemory from = device_memory(*runtime, bytes, error), to = device_memory(*runtime, bytes, error);
  const DeviceStream stream = device_stream(*runtime, error);
  good(from && to && stream, error);
  double best = 0;
  for (int round = 0; round < 10; ++round) {
    const int64_t start = now_ns();
    for (int k = 0; k < 5; ++k) good(runtime->copy(*to, *from, bytes, *stream, error), error);
    good(runtime->drain(*stream, after_ms(10'000), error), error);
    best = std::max(best, 2.0 * 5 * static_cast<double>(bytes) / static_cast<double>(now_ns() - start));
  }
  figures.add("GB/s read and written", best);
}

void speed(const Options& options, DeviceMode mode, Figures& figures) {
  std::vector<Row> all = rows(options, mode);
  test::GroupSpec spec{mode, options.ranks, 16, 4 << 20, 512};
  if (options.small) spec = {mode, options.ranks, 1, 512, 2};
  test::in_threads(options.machine, spec, [&](GroupRank& rank) {
    for (Row& row : all) {
      Row own = row;
      measure(rank, own, options);
      if (rank.rank == 0) row = own;
      rank.meet();
    }
  });
  std::string table;
  for (const Row& row : all) {
    Figures line;
    line.add("bytes", static_cast<double>(row.bytes));
    line.add("program", std::string(name(row.pattern)));
    line.add("low latency", row.low);
    line.add("median us", row.median_us);
    line.add("slowest us", row.slowest_us);
    line.add("host us", row.host_us);
    const double per_second = static_cast<double>(row.bytes) / row.median_us / 1e3;
    line.add("GB/s", per_second);
    if (const double times = traffic(row.pattern, options.ranks); times > 0)
      line.add("GB/s of memory", per_second * times);
    table += (table.empty() ? "" : ", ") + line.json();
  }
  figures.raw("table", "[" + table + "]");
}

}  // namespace ringcomm::gpu_check
