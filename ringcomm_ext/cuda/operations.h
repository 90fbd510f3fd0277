// The operations on lanes and the order in which the sources of a step meet: core/reduce_kernels.inc and core/reduce_tree.inc in scalar form. The operation is
// chosen where two cells are joined, all threads alike: a kernel for each took nvcc four times as long. So is signedness.
#pragma once

#include "cuda/combine_call.h"
#include "cuda/formats.h"
#include "cuda/kernel_call.h"

namespace ringcomm::cuda {

inline constexpr Variant kSigned = 1;  // of integer kernels

// Integers are computed as unsigned of 32 bits or more: they wrap, and nothing is promoted to int.
template <class U>
struct WideOf {
  using type = U;
};
template <>
struct WideOf<uint8_t> {
  using type = uint32_t;
};
template <>
struct WideOf<uint16_t> {
  using type = uint32_t;
};
template <class U>
using Wide = typename WideOf<U>::type;

struct Sum {
  template <class T>
  static RINGCOMM_DEVICE T apply(T a, T b, Variant) {
    return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
  }
};
struct Product {
  template <class T>
  static RINGCOMM_DEVICE T apply(T a, T b, Variant) {
    return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
  }
};
struct And {
  template <class T>
  static RINGCOMM_DEVICE T apply(T a, T b, Variant) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static RINGCOMM_DEVICE T apply(T a, T b, Variant) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static RINGCOMM_DEVICE T apply(T a, T b, Variant) {
    return static_cast<T>(a ^ b);
  }
};

// Signed numbers compare as unsigned ones with the top bit turned over.
template <class T>
RINGCOMM_DEVICE bool less(T a, T b, Variant variant) {
  if constexpr (IsFloat<T>::value) {
    return a < b;
  } else {
    const T top = variant == kSigned ? static_cast<T>(T{1} << (8 * sizeof(T) - 1)) : T{0};
    return static_cast<T>(a ^ top) < static_cast<T>(b ^ top);
  }
}

// Equal values keep a, the earlier source; NaN wins from either side.
struct Min {
  template <class T>
  static RINGCOMM_DEVICE T apply(T a, T b, Variant variant) {
    return less(b, a, variant) || b != b ? b : a;
  }
};
struct Max {
  template <class T>
  static RINGCOMM_DEVICE T apply(T a, T b, Variant variant) {
    return less(a, b, variant) || b != b ? b : a;
  }
};

// A call, and not inlined 16 times: no processor divides integers fast.
template <class U>
RINGCOMM_DEVICE_CALL U divided_integer(U v, uint32_t divisor, Variant variant) {
  if (variant != kSigned) return static_cast<U>(static_cast<Wide<U>>(v) / divisor);
  if constexpr (sizeof(U) == 8) return static_cast<U>(static_cast<int64_t>(v) / static_cast<int64_t>(divisor));
  constexpr int kUnused = 32 - 8 * static_cast<int>(sizeof(U) & 3);  // sign extension of 8 and 16 bits
  const int32_t wide = sizeof(U) < 4
                           ? static_cast<int32_t>(static_cast<uint32_t>(v) << (kUnused & 31)) >> (kUnused & 31)
                           : static_cast<int32_t>(v);
  return static_cast<U>(wide / static_cast<int32_t>(divisor));
}

template <class T>
RINGCOMM_DEVICE T divided(T v, uint32_t divisor, Variant variant) {
  if constexpr (IsFloat<T>::value)
    return v / static_cast<T>(divisor);
  else
    return divided_integer(v, divisor, variant);
}

template <class Format>
struct Accumulator {
  typename Format::Lane lane[Format::kLanes];
};

// to = left op right; `to` may be either.
template <class Op, class Format>
RINGCOMM_DEVICE void join_by(Accumulator<Format>& to, const Accumulator<Format>& left, const Accumulator<Format>& right,
                             Variant variant) {
  RINGCOMM_UNROLL
  for (int i = 0; i < Format::kLanes; ++i) to.lane[i] = Op::apply(left.lane[i], right.lane[i], variant);
}

// kernels.h gives no kernel for what a format has not.
template <class Format>
RINGCOMM_DEVICE void join(ReduceOp op, Accumulator<Format>& to, const Accumulator<Format>& left,
                          const Accumulator<Format>& right, Variant variant) {
  if constexpr (Format::kArithmetic) {
    if (op == ReduceOp::sum || op == ReduceOp::avg) return join_by<Sum>(to, left, right, variant);
    if (op == ReduceOp::product) return join_by<Product>(to, left, right, variant);
    if (op == ReduceOp::min) return join_by<Min>(to, left, right, variant);
    if (op == ReduceOp::max) return join_by<Max>(to, left, right, variant);
  }
  if constexpr (Format::kBitwise) {
    if (op == ReduceOp::band) return join_by<And>(to, left, right, variant);
    if (op == ReduceOp::bor) return join_by<Or>(to, left, right, variant);
    if (op == ReduceOp::bxor) return join_by<Xor>(to, left, right, variant);
  }
}

// A cell of an input that counts `factor` times: rounded, as if the caller had multiplied.
template <class Format>
RINGCOMM_DEVICE_CALL typename Format::Cells scaled(const typename Format::Cells cell, double factor, Variant variant) {
  typename Format::Lane lane[Format::kLanes];
  Format::read(cell, lane, variant);
  RINGCOMM_UNROLL
  for (int i = 0; i < Format::kLanes; ++i) lane[i] *= static_cast<typename Format::Lane>(factor);
  return Format::write(lane, variant);
}

template <class Format>
RINGCOMM_DEVICE void divide(Accumulator<Format>& all, uint32_t divisor, Variant variant) {
  RINGCOMM_UNROLL
  for (int i = 0; i < Format::kLanes; ++i) all.lane[i] = divided(all.lane[i], divisor, variant);
}

inline constexpr int kLevels = 6;  // of fours
static_assert(kMaxSources < (4 << kLevels) && kMostCombined < (4 << kLevels));

// The tree of core/reduce.h over sources 0 to n - 1, as a binary counter of fours: a subtree waits for its right neighbour of the same size. load(k, accumulator) may fail;
// then so does this. Four loads are in flight at a time. What waits is in local memory: it is touched once for four sources, and few calls have more than eight.
template <class Format, class Load>
RINGCOMM_DEVICE bool tree(ReduceOp op, int n, const Load& load, Variant variant, Accumulator<Format>& all) {
  Accumulator<Format> waiting[kLevels];
  int depth = 0, s = 0;
  RINGCOMM_NO_UNROLL
  for (; s + 4 <= n; s += 4) {
    Accumulator<Format> b, c, d;
    if (!load(s, all) || !load(s + 1, b) || !load(s + 2, c) || !load(s + 3, d)) return false;
    join(op, all, all, b, variant), join(op, c, c, d, variant), join(op, all, all, c, variant);
    RINGCOMM_NO_UNROLL
    for (int full = s / 4; full & 1; full >>= 1) join(op, all, waiting[--depth], all, variant);
    waiting[depth++] = all;
  }
  if (s == n) {
    --depth;  // `all` is the four on top
  } else {
    if (!load(s, all)) return false;
    RINGCOMM_NO_UNROLL
    for (++s; s < n; ++s) {  // up to three: their tree adds them up from the left
      Accumulator<Format> next;
      if (!load(s, next)) return false;
      join(op, all, all, next, variant);
    }
  }
  RINGCOMM_NO_UNROLL
  while (depth > 0) join(op, all, waiting[--depth], all, variant);
  return true;
}

}  // namespace ringcomm::cuda
