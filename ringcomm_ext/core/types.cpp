#include "core/types.h"

namespace ringcomm {

size_t element_size(DType dtype) {
  switch (dtype) {
    case DType::int16:
    case DType::uint16:
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::int32:
    case DType::uint32:
    case DType::float32:
    case DType::complex32:
    case DType::qint32:
      return 4;
    case DType::int64:
    case DType::uint64:
    case DType::float64:
    case DType::complex64:
      return 8;
    case DType::complex128:
      return 16;
    default:
      return 1;
  }
}

const char* name(Collective c) {
  static const char* const names[kCollectives] = {"all_reduce",     "broadcast",  "reduce", "all_gather",
                                                  "reduce_scatter", "all_to_all", "gather", "scatter",
                                                  "barrier",        "send",       "recv"};
  const auto i = static_cast<unsigned>(c);
  return i < kCollectives ? names[i] : "?";
}

const char* name(DType t) {
  static const char* const names[] = {"uint8",
                                      "int8",
                                      "int16",
                                      "int32",
                                      "int64",
                                      "uint16",
                                      "uint32",
                                      "uint64",
                                      "float16",
                                      "bfloat16",
                                      "float32",
                                      "float64",
                                      "bool",
                                      "other",
                                      "complex32",
                                      "complex64",
                                      "complex128",
                                      "float8_e4m3fn",
                                      "float8_e5m2",
                                      "float8_e4m3fnuz",
                                      "float8_e5m2fnuz",
                                      "float8_e8m0fnu",
                                      "float4_e2m1fn_x2",
                                      "quint8",
                                      "qint8",
                                      "qint32"};
  const auto i = static_cast<unsigned>(t);
  return i < sizeof(names) / sizeof(*names) ? names[i] : "?";
}

const char* name(ReduceOp op) {
  static const char* const names[] = {"sum", "avg", "product", "min", "max", "band", "bor", "bxor", "none"};
  const auto i = static_cast<unsigned>(op);
  return i < sizeof(names) / sizeof(*names) ? names[i] : "?";
}

}  // namespace ringcomm
