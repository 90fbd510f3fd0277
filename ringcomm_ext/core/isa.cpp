#include "core/isa.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ringcomm {
namespace {

constexpr const char* kNames[kIsas] = {"generic", "avx2", "avx512", "avx512_bf16"};

struct Choice {
  Isa isa = Isa::generic;
  char problem[200] = "";
};

Isa widest() {
  int isa = kIsas - 1;
  while (!supported(static_cast<Isa>(isa))) --isa;  // generic is supported everywhere
  return static_cast<Isa>(isa);
}

Choice choose() {
  Choice choice;
  choice.isa = widest();
  const char* wanted = std::getenv("RINGCOMM_ISA");
  if (wanted == nullptr || wanted[0] == '\0') return choice;
  for (int i = 0; i < kIsas; ++i) {
    if (std::strcmp(wanted, kNames[i]) != 0) continue;
    if (supported(static_cast<Isa>(i))) {
      choice.isa = static_cast<Isa>(i);
      return choice;
    }
    std::snprintf(choice.problem, sizeof choice.problem,
                  "RINGCOMM_ISA=%s: this build or this processor cannot run it; using %s", wanted, name(choice.isa));
    return choice;
  }
  std::snprintf(choice.problem, sizeof choice.problem,
                "RINGCOMM_ISA=%.60s: allowed are generic, avx2, avx512, avx512_bf16; using %s", wanted,
                name(choice.isa));
  return choice;
}

// Not an ifunc: resolvers run before the sanitizers' run-time has started.
const Choice& choice() {
  static const Choice chosen = [] {
    Choice c = choose();
    if (c.problem[0] != '\0') std::fprintf(stderr, "ringcomm: %s\n", c.problem);
    return c;
  }();
  return chosen;
}

}  // namespace

const char* name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool supported(Isa isa) {
  if (isa == Isa::generic) return true;
#if RINGCOMM_X86_KERNELS
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (isa == Isa::avx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 && (isa == Isa::avx512 || __builtin_cpu_supports("avx512bf16"));
#else
  return false;
#endif
}

Isa chosen_isa() { return choice().isa; }

const char* isa_problem() { return choice().problem[0] == '\0' ? nullptr : choice().problem; }

}  // namespace ringcomm
