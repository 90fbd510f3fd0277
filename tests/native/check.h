// Checks of the native tests: the first that fails says where and ends the program, in whatever thread it is.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>

#include "core/status.h"

namespace ringcomm::test {

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}

template <typename A, typename B>
void check_equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": " << a << " and " << b;
  fail(file, line, out.str());
}

inline void check_contains(const char* file, int line, const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) fail(file, line, "'" + part + "' is not in: " + text);
}

#define CHECK(condition) ((condition) ? void() : ::ringcomm::test::fail(__FILE__, __LINE__, "is false: " #condition))
#define CHECK_EQ(a, b) ::ringcomm::test::check_equal(__FILE__, __LINE__, #a " == " #b, a, b)
#define CHECK_CONTAINS(text, part) ::ringcomm::test::check_contains(__FILE__, __LINE__, text, part)

// A program that hangs is a failed one: the kernel ends it.
inline void start(const char* name, unsigned seconds) {
  alarm(seconds);
  std::printf("%s\n", name);
}

inline void section(const char* name) {
  std::printf("  %s\n", name);
  std::fflush(stdout);
}

// Calls `ready` until it gives something true; that must come within a time no working code needs.
template <typename Ready>
auto await(const char* what, Ready ready) {
  const int64_t until = now_ns() + 30'000'000'000;
  while (true) {
    if (auto value = ready()) return value;
    if (now_ns() > until) fail(what, 0, "did not come in 30 s");
    std::this_thread::yield();
  }
}

// xorshift64* with its published constant; the same numbers in every run.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t next() {
    state_ ^= state_ >> 12, state_ ^= state_ << 25, state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Dull;
  }
  size_t below(size_t bound) { return static_cast<size_t>((next() >> 16) % bound); }
  bool one_in(size_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

// What message number `k` of stream `stream` holds: a slot read twice, torn or out of order shows.
inline char pattern(uint64_t stream, uint64_t k, size_t i) {
  return static_cast<char>(stream * 101 + k * 37 + i * 7 + (i >> 8));
}
inline void fill(char* to, size_t bytes, uint64_t stream, uint64_t k) {
  for (size_t i = 0; i < bytes; ++i) to[i] = pattern(stream, k, i);
}
inline bool holds(const char* from, size_t bytes, uint64_t stream, uint64_t k) {
  for (size_t i = 0; i < bytes; ++i)
    if (from[i] != pattern(stream, k, i)) return false;
  return true;
}

}  // namespace ringcomm::test
