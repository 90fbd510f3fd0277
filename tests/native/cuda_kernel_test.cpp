// The kernel interpreter, its threads being threads: the bits of the host interpreter for every opcode, schedule, type and size, plain and low latency; replay, wrapping
// positions, other calls' slots, a rank that does not come.
#include "kernel_conditions.h"
#include "kernel_float8.h"
#include "kernel_plan_file.h"
#include "kernel_plans.h"
#include "kernel_tasks.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

void schedules() {
  const Grid grids[] = {{1, 1}, {2, 4}, {3, 1}};
  for (const Schedule& s : kSchedules) {
    section(s.name);
    for (int n : {1, 2, 3, 4, 8}) {
      if (n < s.least || n > s.most) continue;
      for (const Grid& grid : grids) {
        if (kSanitized && n == 8 && grid.threads > 1) continue;  // minutes
        check_plan(plan(s.make, n), grid, kSanitized ? 8 : 12);
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

// With a file: the plans in it (kernel_plan_file.h), and nothing else.
int main(int argc, char** argv) {
  start("cuda_kernel_test", 280);
  if (argc == 2) return check_plan_file(argv[1]);
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
