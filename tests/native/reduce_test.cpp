// Every reduction, with every instruction set this machine has, gives the bits of the scalar model; sources and guard
// bytes stay as they were; any alignment, dst apart from or equal to any one source.
// Build (from the repository root): g++ -std=c++17 -O3 -ffp-contract=off -I ringcomm_ext -I tests/native
//   tests/native/reduce_test.cpp ringcomm_ext/core/{reduce*,isa,types}.cpp
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/reduce_tables.h"
#include "reduce_inputs.h"
#include "reduce_model.h"

namespace {

using namespace ringcomm;
using inputs::is_float;
using Bytes = std::vector<char>;

constexpr size_t kGuard = 128;

std::vector<Isa> isas() {
  std::vector<Isa> found;
  for (int i = 0; i < kIsas; ++i) {
    if (supported(static_cast<Isa>(i))) found.push_back(static_cast<Isa>(i));
  }
  return found;
}

ReduceFn kernel(Isa isa, DType dtype, ReduceOp op) {
  return reduce_table(isa)->fn[static_cast<int>(dtype)][static_cast<int>(op)];
}

bool fail(Isa isa, DType t, ReduceOp op, const std::string& what) {
  std::printf("FAIL %s %s %s: %s\n", name(isa), name(t), name(op), what.c_str());
  return false;
}

std::string hex(const char* at, size_t size) {
  std::string text = "0x";
  char digits[3];
  for (size_t i = size; i-- > 0;) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(at[i]));
    text += digits;
  }
  return text;
}

struct Case {
  DType dtype;
  ReduceOp op;
  size_t count;
  int divisor;
  std::vector<Bytes> sources;
  Bytes expected;
};

// Runs one kernel; `in_place` is the source that dst is, or -1. Source s lies `offset` + 3 s bytes from alignment.
bool check_run(const Case& c, Isa isa, size_t offset, int in_place) {
  const size_t bytes = c.expected.size(), size = element_size(c.dtype), nsrc = c.sources.size();
  std::vector<Bytes> arenas(nsrc + 1);  // the last one is dst where dst is no source
  std::vector<size_t> begin(nsrc + 1);
  for (size_t a = 0; a <= nsrc; ++a) {
    begin[a] = kGuard + offset * (3 * a + 1) % 64;
    arenas[a].assign(begin[a] + bytes + kGuard, static_cast<char>(0x5a + a));
    if (a < nsrc) std::copy(c.sources[a].begin(), c.sources[a].end(), arenas[a].begin() + begin[a]);
  }
  std::vector<Bytes> after = arenas;
  const size_t target = in_place < 0 ? nsrc : static_cast<size_t>(in_place);
  std::copy(c.expected.begin(), c.expected.end(), after[target].begin() + begin[target]);

  std::vector<const void*> src;
  for (size_t s = 0; s < nsrc; ++s) src.push_back(arenas[s].data() + begin[s]);
  kernel(isa, c.dtype, c.op)(arenas[target].data() + begin[target], src.data(), static_cast<int>(nsrc), c.count,
                             c.divisor);
  if (arenas == after) return true;

  std::string what = std::to_string(nsrc) + " sources, count " + std::to_string(c.count) + ", offset " +
                     std::to_string(offset) + ", in place " + std::to_string(in_place);
  for (size_t i = 0; i < c.count; ++i) {
    const char* got = arenas[target].data() + begin[target] + i * size;
    if (std::memcmp(got, c.expected.data() + i * size, size) == 0) continue;
    what += ", element " + std::to_string(i) + " of";
    for (const Bytes& s : c.sources) what += " " + hex(s.data() + i * size, size);
    return fail(isa, c.dtype, c.op,
                what + " is " + hex(got, size) + ", not " + hex(c.expected.data() + i * size, size));
  }
  return fail(isa, c.dtype, c.op, what + ": a byte outside dst changed");
}

Case make_case(DType t, ReduceOp op, int nsrc, size_t count, int divisor) {
  Case c{t, op, count, divisor, {}, Bytes(count * element_size(t))};
  std::vector<const char*> pointers;
  for (int s = 0; s < nsrc; ++s) {
    c.sources.emplace_back(count * element_size(t));
    inputs::fill(t, c.sources.back().data(), count);
  }
  for (const Bytes& s : c.sources) pointers.push_back(s.data());
  model::reduce(t, op, c.expected.data(), pointers, count, divisor);
  return c;
}

bool check_against_model(DType t, ReduceOp op) {
  for (int nsrc : {2, 3, 4, 5, 7, 8, 14}) {
    for (size_t count : {0u, 1u, 7u, 64u, 1000u, 4099u}) {
      if (nsrc > 5 && count == 1000) continue;
      for (int divisor : op == ReduceOp::avg ? std::vector<int>{nsrc, 200, 70000} : std::vector<int>{1}) {
        const Case c = make_case(t, op, nsrc, count, divisor);
        for (Isa isa : isas()) {
          for (size_t offset : {0u, 1u, 6u}) {
            for (int in_place : {-1, 0, 1, nsrc / 2, nsrc - 1}) {
              if (!check_run(c, isa, offset, in_place)) return false;
            }
          }
        }
      }
    }
  }
  return true;
}

bool check_defined_pairs() {
  bool good = true;
  int pairs = 0;
  for (int t = 0; t < kReducibleDTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      const DType dtype = static_cast<DType>(t);
      const ReduceOp op = static_cast<ReduceOp>(o);
      const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
      const bool defined = !(is_float(dtype) && bitwise) && !(dtype == DType::boolean && op == ReduceOp::avg);
      for (Isa isa : isas()) {
        if ((kernel(isa, dtype, op) != nullptr) != defined) good = fail(isa, dtype, op, "wrongly defined or missing");
      }
      if (defined && !check_against_model(dtype, op)) good = false;
      pairs += defined ? 1 : 0;
    }
  }
  if (reduce_function(DType::other, ReduceOp::sum) || reduce_function(DType::int8, ReduceOp::none)) good = false;
  std::printf("%d pairs of dtype and op x 2 to 14 sources x counts 0 to 4099 x offsets x in place: %s\n", pairs,
              good ? "as the model" : "FAILED");
  return good;
}

// All 65536 values of a 16-bit float against partners that reach ties, subnormals, overflow, both zeros.
bool check_every_half(DType t) {
  const bool f16 = t == DType::float16;
  std::vector<uint64_t> partners = {0x8000, 0, 1, 0x7fff, f16 ? 0x7c00u : 0x7f80u, f16 ? 0x7bffu : 0x7f7fu};
  for (int e : {-9, -1, 0, 1, 5}) partners.push_back(inputs::float_bits(t, e == 1, e, e < 0 ? 0 : 3));
  bool good = true;
  for (ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
    for (uint64_t partner : partners) {
      Case c{t, op, 65536, 3, {Bytes(2 * 65536), Bytes(2 * 65536)}, Bytes(2 * 65536)};
      for (size_t i = 0; i < 65536; ++i) {
        std::memcpy(&c.sources[0][2 * i], &i, 2);
        std::memcpy(&c.sources[1][2 * i], &partner, 2);
      }
      model::reduce(t, op, c.expected.data(), {c.sources[0].data(), c.sources[1].data()}, c.count, c.divisor);
      for (Isa isa : isas()) good = check_run(c, isa, 0, -1) && good;
    }
  }
  std::printf("every %s with %zu partners: %s\n", name(t), partners.size(), good ? "as the model" : "FAILED");
  return good;
}

// The bits of every shape the tree takes, worked by hand: 2^24 + 1 is 2^24 in float32 (a tie, to even), so ones count
// only where they meet each other before they meet the 2^24. ones[i]: how far i + 1 ones behind it take the sum.
bool check_order() {
  const float big = 16777216;
  const float ones[] = {0, 0, 2, 4, 4, 4, 6, 8, 8, 8, 10, 12, 12, 12, 14};
  bool good = true;
  for (Isa isa : isas()) {
    for (int nsrc = 2; nsrc <= 16; ++nsrc) {
      std::vector<float> given(static_cast<size_t>(nsrc), 1);
      given[0] = big;
      std::vector<const void*> src;
      for (const float& f : given) src.push_back(&f);
      float got;
      kernel(isa, DType::float32, ReduceOp::sum)(&got, src.data(), nsrc, 1, 1);
      if (got != big + ones[nsrc - 2])
        good = fail(isa, DType::float32, ReduceOp::sum,
                    std::to_string(nsrc) + " sources in another order than the tree's");
    }
  }
  std::printf("order of 2 to 16 sources: %s\n", good ? "the tree's" : "FAILED");
  return good;
}

// Every 16-bit float out and back; float32s around every rounding; any alignment, nothing written behind the end.
bool check_conversion(DType t) {
  const model::Half h = t == DType::float16 ? model::kFloat16 : model::kBFloat16;
  std::vector<float> given;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = static_cast<float>(model::decode(h, static_cast<uint16_t>(bits)));
    const float next = static_cast<float>(model::decode(h, static_cast<uint16_t>(bits + 1)));
    const float half_way = value / 2 + next / 2;
    for (float f : {value, half_way, std::nextafter(half_way, value), std::nextafter(half_way, next)})
      given.push_back(f);
  }
  std::vector<float> more(10007);
  inputs::fill(DType::float32, reinterpret_cast<char*>(more.data()), more.size());
  given.insert(given.end(), more.begin(), more.end());
  bool good = true;
  for (Isa isa : isas()) {
    const HalfConversion& c = t == DType::float16 ? reduce_table(isa)->float16 : reduce_table(isa)->bfloat16;
    for (size_t offset : {0u, 1u}) {
      for (size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{19}, given.size()}) {
        Bytes halves(offset + 2 * count + kGuard, 0x5a);
        c.narrow(halves.data() + offset, given.data() + given.size() - count, count);
        for (size_t i = 0; i < count; ++i) {
          const float f = given[given.size() - count + i];
          const uint16_t wanted = model::encode(h, static_cast<double>(f));
          if (std::memcmp(halves.data() + offset + 2 * i, &wanted, 2) != 0)
            return fail(isa, t, ReduceOp::none, "narrow of " + std::to_string(f));
        }
        std::vector<float> back(count + 8, -7);
        c.widen(back.data(), halves.data() + offset, count);
        for (size_t i = 0; i < count; ++i) {
          uint16_t bits;
          std::memcpy(&bits, halves.data() + offset + 2 * i, 2);
          const double wanted = model::decode(h, bits), got = static_cast<double>(back[i]);
          const bool same =
              std::isnan(wanted) ? std::isnan(got) : wanted == got && std::signbit(wanted) == std::signbit(got);
          if (!same) return fail(isa, t, ReduceOp::none, "widen of " + hex(halves.data() + offset + 2 * i, 2));
        }
        const Bytes guard(kGuard, 0x5a);
        good = good && std::equal(guard.begin(), guard.end(), halves.end() - kGuard) && back[count] == -7;
      }
    }
    if (!good) return fail(isa, t, ReduceOp::none, "a conversion wrote behind the end");
  }
  std::printf("%s to float32 and back, %zu values: as the model\n", name(t), given.size());
  return true;
}

// Worked by hand: what the model itself must get right.
struct Known {
  DType dtype;
  ReduceOp op;
  uint64_t a, b;
  int divisor;
  uint64_t result;
  const char* why;
};

bool check_known_values() {
  const Known table[] = {
      {DType::float16, ReduceOp::sum, 0x7bff, 0x4c00, 1, 0x7c00, "65504 + 16 is half way to 2^16: even, infinity"},
      {DType::float16, ReduceOp::sum, 0x7bff, 0x4bff, 1, 0x7bff, "65504 + 15.99 stays"},
      {DType::float16, ReduceOp::product, 0x0001, 0x3800, 1, 0x0000, "2^-24 / 2 is a tie: even, zero"},
      {DType::float16, ReduceOp::product, 0x0003, 0x3800, 1, 0x0002, "1.5 x 2^-24 is a tie: even, up"},
      {DType::float16, ReduceOp::avg, 0x7bff, 0x7bff, 2, 0x7bff, "the sum does not overflow before the division"},
      {DType::float16, ReduceOp::sum, 0x7d01, 0x3c00, 1, 0x7e00, "a signalling NaN gives the quiet NaN"},
      {DType::bfloat16, ReduceOp::sum, 0x3f80, 0x3b80, 1, 0x3f80, "1 + 2^-8 is a tie: even, down"},
      {DType::bfloat16, ReduceOp::sum, 0x3f81, 0x3b80, 1, 0x3f82, "1 + 2^-7 + 2^-8 is a tie: even, up"},
      {DType::bfloat16, ReduceOp::sum, 0x0001, 0x0001, 1, 0x0002, "subnormals are kept"},
      {DType::bfloat16, ReduceOp::max, 0xffc1, 0x3f80, 1, 0x7fc0, "NaN wins, without sign and payload"},
      {DType::float32, ReduceOp::min, 0x80000000, 0, 1, 0x80000000, "equal zeros: the earlier stays"},
      {DType::float32, ReduceOp::min, 0, 0x80000000, 1, 0, "equal zeros: the earlier stays"},
      {DType::float32, ReduceOp::max, 0x3f800000, 0x7fc00001, 1, 0x7fc00000, "NaN wins from the second source"},
      {DType::float32, ReduceOp::sum, 0x7f800000, 0xff800000, 1, 0x7fc00000, "inf - inf"},
      {DType::float64, ReduceOp::avg, 0x3ff0000000000000, 0, 3, 0x3fd5555555555555, "1 / 3"},
      {DType::int8, ReduceOp::avg, 0xfc, 0xfd, 2, 0xfd, "-7 / 2 is -3: toward zero"},
      {DType::int8, ReduceOp::avg, 0x64, 0x64, 1, 0xc8, "100 + 100 wraps to -56 first"},
      {DType::int8, ReduceOp::avg, 0x7f, 0x00, 200, 0x00, "a divisor wider than the element"},
      {DType::int32, ReduceOp::sum, 0x80000000, 0xffffffff, 1, 0x7fffffff, "INT_MIN - 1 wraps"},
      {DType::int32, ReduceOp::product, 0x80000000, 0xffffffff, 1, 0x80000000, "-INT_MIN wraps"},
      {DType::uint16, ReduceOp::product, 0xffff, 0xffff, 1, 0x0001, "65535^2 wraps"},
      {DType::uint8, ReduceOp::max, 0xff, 0x01, 1, 0xff, "unsigned comparison"},
      {DType::int64, ReduceOp::min, 0x8000000000000000, 0, 1, 0x8000000000000000, "signed comparison"},
      {DType::boolean, ReduceOp::band, 2, 4, 1, 1, "any byte but 0 is true"},
  };
  bool good = true;
  for (const Known& k : table) {
    const size_t size = element_size(k.dtype);
    Case c{k.dtype, k.op, 1, k.divisor, {Bytes(size), Bytes(size)}, Bytes(size)};
    std::memcpy(c.sources[0].data(), &k.a, size);
    std::memcpy(c.sources[1].data(), &k.b, size);
    std::memcpy(c.expected.data(), &k.result, size);
    for (Isa isa : isas()) {
      if (check_run(c, isa, 0, -1)) continue;
      std::printf("  (%s)\n", k.why);
      good = false;
    }
  }
  std::printf("%zu results worked by hand: %s\n", std::size(table), good ? "right" : "FAILED");
  return good;
}

// RINGCOMM_ISA in a child process, because the choice is made once.
bool check_choice(const char* wanted, bool followed) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setenv("RINGCOMM_ISA", wanted, 1);
    const bool same = std::string(reduce_isa()) == wanted;
    const Isa isa = chosen_isa();
    const bool uses = reduce_function(DType::float32, ReduceOp::sum) == kernel(isa, DType::float32, ReduceOp::sum);
    std::_Exit(same == followed && (isa_problem() == nullptr) == followed && uses ? 0 : 1);
  }
  int status = 0;
  const bool good = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  std::printf("RINGCOMM_ISA=%s is %s: %s\n", wanted, followed ? "followed" : "refused, aloud", good ? "yes" : "FAILED");
  return good;
}

}  // namespace

int main() {
  bool good = true;
  for (int i = 0; i < kIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    good = check_choice(name(isa), supported(isa)) && good;
  }
  good = check_choice("sse9", false) && good;
  good = check_known_values() && good;
  good = check_order() && good;
  good = check_conversion(DType::float16) && good;
  good = check_conversion(DType::bfloat16) && good;
  good = check_every_half(DType::float16) && good;
  good = check_every_half(DType::bfloat16) && good;
  good = check_defined_pairs() && good;
  std::printf(good ? "reduce_test: all passed\n" : "reduce_test: FAILED\n");
  return good ? 0 : 1;
}
