#include "core/copy.h"

#include <cstdint>
#include <cstring>

#include "core/isa.h"

#if RINGCOMM_X86_KERNELS
#include <immintrin.h>
#endif

namespace ringcomm {

void copy_cached(void* dst, const void* src, size_t n) {
  if (n != 0) std::memcpy(dst, src, n);  // n == 0 may come with null pointers
}

#if RINGCOMM_X86_KERNELS
namespace {

constexpr size_t kLine = 64;

// The bodies: dst aligned to a line, `lines` of 64 bytes.
void stream_sse2(char* dst, const char* src, size_t lines) {
  for (; lines != 0; --lines, dst += kLine, src += kLine) {
    for (size_t at = 0; at < kLine; at += 16) {
      const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + at));
      _mm_stream_si128(reinterpret_cast<__m128i*>(dst + at), v);
    }
  }
}

__attribute__((target("avx2"))) void stream_avx2(char* dst, const char* src, size_t lines) {
  for (; lines != 0; --lines, dst += kLine, src += kLine) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + 32), high);
  }
}

__attribute__((target("avx512f"))) void stream_avx512(char* dst, const char* src, size_t lines) {
  for (; lines != 0; --lines, dst += kLine, src += kLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), _mm512_loadu_si512(src));
  }
}

using StreamFn = void (*)(char* dst, const char* src, size_t lines);

StreamFn stream_for(Isa isa) {
  if (isa >= Isa::avx512) return stream_avx512;
  return isa == Isa::avx2 ? stream_avx2 : stream_sse2;
}

}  // namespace

void copy_streaming(void* dst, const void* src, size_t n) {
  static const StreamFn stream = stream_for(chosen_isa());
  char* to = static_cast<char*>(dst);
  const char* from = static_cast<const char*>(src);
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  if (n < head + kLine) return copy_cached(dst, src, n);
  std::memcpy(to, from, head);
  const size_t body = (n - head) / kLine * kLine;
  stream(to + head, from + head, body / kLine);
  std::memcpy(to + head + body, from + head + body, n - head - body);
  // Non-temporal stores are weakly ordered: without this a release store could become visible before them.
  _mm_sfence();
}

#else

void copy_streaming(void* dst, const void* src, size_t n) { copy_cached(dst, src, n); }

#endif

}  // namespace ringcomm
