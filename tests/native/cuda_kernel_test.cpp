// The kernel interpreter, its threads being threads: the bits of the host interpreter for every opcode, schedule, type and size, plain and low latency; replay, wrapping
// positions, other calls' slots, a rank that does not come.
#include "kernel_conditions.h"
#include "kernel_float8.h"
#include "kernel_plans.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

const DType kTypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::uint8, DType::float64};
const size_t kSizes[] = {0, 1, 15, 64, 65, 333, 1000, 4099};

// A task of random kind, of the sizes above and some more.
Task random_task(Random& random, const cuda::DeviceLayout& layout, uint32_t turn) {
  Task t;
  t.dtype = kTypes[random.below(std::size(kTypes))];
  t.op = ReduceOp::sum;
  if (random.one_in(3)) t.op = random.one_in(2) ? ReduceOp::avg : ReduceOp::max;
  const size_t elements[] = {1, 2, 4, 8, 16, 3};
  t.element = elements[random.below(std::size(elements))];
  t.size = turn < std::size(kSizes) ? kSizes[turn] : random.below(kSanitized ? 700 : 3000);
  t.low_latency = turn % 2 == 1;
  t.uneven = random.one_in(3), t.sized_tags = t.uneven && random.one_in(2);
  t.in_place = random.one_in(3);
  t.misaligned = random.one_in(3) ? random.below(16) : 0;
  t.blocks = 1 + static_cast<uint32_t>(random.below(static_cast<size_t>(layout.shape().blocks)));
  t.piece =
      std::min<size_t>(layout.largest_piece(t.low_latency, static_cast<int>(t.blocks)) / 16, 1 + random.below(100));
  t.tag = turn + 1;
  return t;
}

void check_schedule(const Schedule& s, int ranks, Grid grid, uint32_t tasks) {
  KernelGroup group({ranks, static_cast<int>(grid.blocks), 4, 4096, 2048}, grid.threads);
  Random random(static_cast<uint64_t>(ranks) * 100 + grid.blocks * 10 + grid.threads);
  const Plan tables = plan(s.make, ranks);
  std::vector<std::unique_ptr<Loaded>> loaded;
  for (const Packed& table : tables) loaded.push_back(group.load(table));
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<std::vector<Launch>> launches(static_cast<size_t>(ranks));
  for (uint32_t k = 0; k < tasks; ++k) {
    Task task = random_task(random, group.layout(), k);
    // all_to_all has no pairs to share memory, and of the schedules here a few read IN again after OUT was written.
    if (tables[0][2] == static_cast<int32_t>(Collective::all_to_all)) task.in_place = false;
    if (cut(static_cast<Collective>(tables[0][2]))) task.uneven = task.sized_tags = false;
    jobs.push_back(std::make_unique<Job>(tables, task));
    for (int r = 0; r < ranks; ++r) launches[r].push_back(jobs.back()->launch(*loaded[r], r));
  }
  group.run(std::move(launches));
  for (const auto& job : jobs) job->check();
}

void schedules() {
  const Grid grids[] = {{1, 1}, {2, 4}, {3, 1}};
  for (const Schedule& s : kSchedules) {
    section(s.name);
    for (int n : {1, 2, 3, 4, 8}) {
      if (n < s.least || n > s.most) continue;
      for (const Grid& grid : grids) {
        if (kSanitized && n == 8 && grid.threads > 1) continue;  // minutes
        check_schedule(s, n, grid, kSanitized ? 10 : 24);
      }
    }
  }
}

// Every type and operation, 2 to 32 sources, among them corner cases, against the host's kernels.
void arithmetic() {
  for (int t = 0; t < kReducibleDTypes; ++t)
    for (int o = 0; o < kReduceOps; ++o) {
      const DType dtype = static_cast<DType>(t);
      const ReduceOp op = static_cast<ReduceOp>(o);
      cuda::KernelChoice choice;
      const ReduceFn host = reduce_function(dtype, op);
      CHECK_EQ(cuda::reducing_kernel(dtype, op, choice), host != nullptr);
      if (host == nullptr) continue;
      for (int n : {2, 3, 4, 5, 7, 8, 13, 32}) {
        const size_t count = kSanitized ? 301 : 2003, size = element_size(dtype);
        std::vector<std::vector<char>> sources(static_cast<size_t>(n), std::vector<char>(count * size));
        std::vector<const void*> pointers;
        for (auto& s : sources) inputs::fill(dtype, s.data(), count), pointers.push_back(s.data());
        std::vector<char> expected(count * size);
        host(expected.data(), pointers.data(), n, count, n);
        if (reduce_once(choice, sources, count, static_cast<size_t>(n) % 3) != expected)
          test::fail(name(dtype), n, std::string(name(op)) + ": not the host's bits");
      }
    }
}

// Complex sums are those of the parts.
void complex_numbers() {
  for (auto [dtype, part] : {std::pair{DType::complex32, DType::float16},
                             {DType::complex64, DType::float32},
                             {DType::complex128, DType::float64}}) {
    cuda::KernelChoice complex, real;
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      CHECK(cuda::reducing_kernel(dtype, op, complex) && cuda::reducing_kernel(part, op, real));
      CHECK(complex.family == real.family);
      CHECK_EQ(complex.element, real.element);
      CHECK_EQ(complex.parts * complex.element, element_size(dtype));
    }
    for (ReduceOp op : {ReduceOp::product, ReduceOp::min, ReduceOp::max, ReduceOp::bor})
      CHECK(!cuda::reducing_kernel(dtype, op, complex));
  }
}

}  // namespace

int main() {
  start("cuda_kernel_test", kSanitized ? 290 : 240);
  section("ranks in processes");
  processes();
  section("arithmetic");
  arithmetic();
  complex_numbers();
  float8_sums();
  section("premultiplied");
  premultiplied();
  section("replay");
  replay();
  section("positions wrap");
  positions_wrap();
  section("another call's slot");
  foreign_tags();
  section("a rank that does not come");
  missing_rank();
  schedules();
  return 0;
}
