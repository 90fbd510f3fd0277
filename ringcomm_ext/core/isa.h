// Which instruction set the kernels of this process use. Any thread.
#pragma once

// The wide kernels rest on GCC's target pragma. Elsewhere (aarch64, clang) only the generic kernels are built.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define RINGCOMM_X86_KERNELS 1
#else
#define RINGCOMM_X86_KERNELS 0
#endif

namespace ringcomm {

// In rising order: each includes what the ones before it need.
enum class Isa : int { generic = 0, avx2 = 1, avx512 = 2, avx512_bf16 = 3 };
inline constexpr int kIsas = 4;

const char* name(Isa isa);

// True where the kernels of `isa` are in this build and the processor and the kernel of the host can run them.
bool supported(Isa isa);

// The widest supported one, or the one named by RINGCOMM_ISA (generic, avx2, avx512, avx512_bf16). Chosen at the first
// call, then fixed. A value that cannot be followed is reported once on stderr and the widest supported one is used.
Isa chosen_isa();

// nullptr, or the sentence that says why RINGCOMM_ISA was not followed (for callers that would rather refuse to start).
const char* isa_problem();

}  // namespace ringcomm
