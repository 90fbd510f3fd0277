#include "cuda/kernels.h"

#include "cuda/operations.h"

namespace ringcomm::cuda {
namespace {

constexpr const char* kNames[kFamilies] = {"bytes",    "int8",    "int16",   "int32",   "int64", "float16",
                                           "bfloat16", "float32", "float64", "boolean", "float8"};

struct Row {
  DType dtype;
  Family family;
  uint32_t variant;
  size_t parts;
};

constexpr Row kRows[] = {
    {DType::uint8, Family::int8, 0, 1},
    {DType::int8, Family::int8, kSigned, 1},
    {DType::int16, Family::int16, kSigned, 1},
    {DType::int32, Family::int32, kSigned, 1},
    {DType::int64, Family::int64, kSigned, 1},
    {DType::uint16, Family::int16, 0, 1},
    {DType::uint32, Family::int32, 0, 1},
    {DType::uint64, Family::int64, 0, 1},
    {DType::float16, Family::float16, 0, 1},
    {DType::bfloat16, Family::bfloat16, 0, 1},
    {DType::float32, Family::float32, 0, 1},
    {DType::float64, Family::float64, 0, 1},
    {DType::boolean, Family::boolean, 0, 1},
    {DType::complex32, Family::float16, 0, 2},
    {DType::complex64, Family::float32, 0, 2},
    {DType::complex128, Family::float64, 0, 2},
    {DType::float8_e4m3fn, Family::float8, static_cast<uint32_t>(Float8::e4m3fn), 1},
    {DType::float8_e5m2, Family::float8, static_cast<uint32_t>(Float8::e5m2), 1},
    {DType::float8_e4m3fnuz, Family::float8, static_cast<uint32_t>(Float8::e4m3fnuz), 1},
    {DType::float8_e5m2fnuz, Family::float8, static_cast<uint32_t>(Float8::e5m2fnuz), 1},
};

bool bitwise(ReduceOp op) { return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor; }

// On 0 and 1.
ReduceOp boolean_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::max:
      return ReduceOp::bor;
    case ReduceOp::product:
    case ReduceOp::min:
      return ReduceOp::band;
    case ReduceOp::avg:
      return ReduceOp::none;
    default:
      return op;
  }
}

bool allowed(const Row& row, ReduceOp op) {
  if (op >= ReduceOp::none) return false;
  if (row.parts == 2) return op == ReduceOp::sum || op == ReduceOp::avg;
  return row.family < Family::float16 || row.family == Family::boolean || !bitwise(op);
}

}  // namespace

std::string kernel_name(Family family) { return std::string("ringcomm_") + kNames[static_cast<int>(family)]; }
std::string combine_name(Family family) { return std::string("ringcomm_combine_") + kNames[static_cast<int>(family)]; }

std::vector<std::string> kernel_names() {
  std::vector<std::string> all;
  for (int f = 0; f < kFamilies; ++f) {
    all.push_back(kernel_name(static_cast<Family>(f)));
    if (static_cast<Family>(f) != Family::bytes) all.push_back(combine_name(static_cast<Family>(f)));
  }
  return all;
}

KernelChoice moving_kernel(size_t element) {
  KernelChoice choice;
  choice.element = element;
  return choice;
}

bool reducing_kernel(DType dtype, ReduceOp op, KernelChoice& out) {
  for (const Row& row : kRows) {
    if (row.dtype != dtype) continue;
    out = {row.family, row.variant, row.family == Family::boolean ? boolean_op(op) : op,
           element_size(dtype) / row.parts, row.parts};
    return allowed(row, op) && out.op != ReduceOp::none;
  }
  return false;
}

}  // namespace ringcomm::cuda
