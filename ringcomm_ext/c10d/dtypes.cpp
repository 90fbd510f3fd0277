#include "c10d/dtypes.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <array>
#include <optional>

#include "core/reduce.h"

namespace ringcomm {
namespace {

struct Op {
  c10d::ReduceOp::RedOpType type;
  ReduceOp plain;
  const char* name;
  bool of_parts;  // of complex numbers it is that of their real and imaginary parts (isComplexViewAsRealAllowed)
};

constexpr std::array<Op, 9> kOps{{
    {c10d::ReduceOp::SUM, ReduceOp::sum, "sum", true},
    {c10d::ReduceOp::AVG, ReduceOp::avg, "avg", true},
    {c10d::ReduceOp::PREMUL_SUM, ReduceOp::sum, "premul_sum", true},
    {c10d::ReduceOp::PRODUCT, ReduceOp::product, "product", false},
    {c10d::ReduceOp::MIN, ReduceOp::min, "min", false},
    {c10d::ReduceOp::MAX, ReduceOp::max, "max", false},
    {c10d::ReduceOp::BAND, ReduceOp::band, "band", false},
    {c10d::ReduceOp::BOR, ReduceOp::bor, "bor", false},
    {c10d::ReduceOp::BXOR, ReduceOp::bxor, "bxor", false},
}};

bool takes(const Op& op, at::ScalarType type) {
  const at::ScalarType real = op.of_parts && at::isComplexType(type) ? at::toRealValueType(type) : type;
  if (op.type == c10d::ReduceOp::PREMUL_SUM && !at::isFloatingType(real)) return false;
  return reduce_function(dtype_of(real), op.plain) != nullptr;
}

std::string allowed(at::ScalarType type) {
  std::string text;
  for (const std::string& op : reduce_ops(type)) text += " " + op;
  return text.empty() ? "it can only be moved" : "allowed:" + text;
}

}  // namespace

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return DType::uint8;
    case at::kChar:
      return DType::int8;
    case at::kShort:
      return DType::int16;
    case at::kInt:
      return DType::int32;
    case at::kLong:
      return DType::int64;
    case at::kUInt16:
      return DType::uint16;
    case at::kUInt32:
      return DType::uint32;
    case at::kUInt64:
      return DType::uint64;
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kFloat:
      return DType::float32;
    case at::kDouble:
      return DType::float64;
    case at::kBool:
      return DType::boolean;
    case at::kComplexHalf:
      return DType::complex32;
    case at::kComplexFloat:
      return DType::complex64;
    case at::kComplexDouble:
      return DType::complex128;
    case at::kFloat8_e4m3fn:
      return DType::float8_e4m3fn;
    case at::kFloat8_e5m2:
      return DType::float8_e5m2;
    case at::kFloat8_e4m3fnuz:
      return DType::float8_e4m3fnuz;
    case at::kFloat8_e5m2fnuz:
      return DType::float8_e5m2fnuz;
    case at::kFloat8_e8m0fnu:
      return DType::float8_e8m0fnu;
    case at::kFloat4_e2m1fn_x2:
      return DType::float4_e2m1fn_x2;
    case at::kQUInt8:
      return DType::quint8;
    case at::kQInt8:
      return DType::qint8;
    case at::kQInt32:
      return DType::qint32;
    default:
      return DType::other;
  }
}

std::string dtype_name(at::ScalarType type) { return "torch." + std::string(c10::getDtypeNames(type).first); }

bool moves(at::ScalarType type) {
  switch (type) {
    case at::kQUInt4x2:
    case at::kQUInt2x4:
    case at::ScalarType::Undefined:
      return false;
    default:
      return true;
  }
}

std::vector<std::string> reduce_ops(at::ScalarType type) {
  std::vector<std::string> names;
  for (const Op& op : kOps)
    if (takes(op, type)) names.emplace_back(op.name);
  return names;
}

void check_moves(const at::Tensor& tensor, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(moves(tensor.scalar_type()), "ringcomm: ", what, ": ", argument, " is ",
                    dtype_name(tensor.scalar_type()),
                    ", in which several elements share a byte; only types of whole bytes are moved");
}

ReduceOp reduce_op_of(const c10d::ReduceOp& op, const at::Tensor& tensor, const char* what) {
  for (const Op& known : kOps) {
    if (known.type != op.op_) continue;
    TORCH_CHECK_VALUE(takes(known, tensor.scalar_type()), "ringcomm: ", what, ": reduce op ", known.name,
                      " is not defined for ", dtype_name(tensor.scalar_type()), " (", allowed(tensor.scalar_type()),
                      ")");
    return known.plain;
  }
  TORCH_CHECK_VALUE(false, "ringcomm: ", what, ": unknown reduce op ", static_cast<int>(op.op_));
}

at::Tensor copyable(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  if (dtype_of(type) < DType::other || tensor.is_complex()) return tensor;
  const at::ScalarType bytes = tensor.element_size() == 4   ? at::kInt
                               : tensor.element_size() == 2 ? at::kShort
                                                            : at::kByte;
  if (!tensor.is_quantized()) return tensor.view(bytes);
  // A quantized tensor has no view as another type: scale and zero point would be lost on the way.
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), [keep = tensor](void*) {}, bytes);
}

}  // namespace ringcomm
