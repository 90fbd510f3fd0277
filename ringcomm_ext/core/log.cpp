#include "core/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace ringcomm {
namespace {

std::atomic<int> level_now{0};

struct Target {  // leaked: threads may log while the process exits
  std::mutex mutex;
  std::FILE* file = stderr;
  std::string prefix;
};
Target& target() {
  static auto* t = new Target;
  return *t;
}

std::string expand(std::string path) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  for (const auto& [key, value] : {std::pair<std::string, std::string>{"%h", host}, {"%p", std::to_string(getpid())}})
    for (size_t at = path.find(key); at != std::string::npos; at = path.find(key, at + value.size()))
      path.replace(at, 2, value);
  return path;
}

}  // namespace

bool set_log(LogLevel level, const std::string& file, const std::string& prefix) {
  Target& t = target();
  const std::lock_guard<std::mutex> hold(t.mutex);
  level_now = static_cast<int>(level);
  t.prefix = prefix;
  if (t.file != stderr) std::fclose(t.file);
  t.file = stderr;
  if (file.empty()) return true;
  std::FILE* f = std::fopen(expand(file).c_str(), "ae");
  if (f) t.file = f;
  return f != nullptr;
}

bool logs(LogLevel level) { return static_cast<int>(level) <= level_now.load(std::memory_order_relaxed); }

void log(LogLevel level, const std::string& line) {
  if (!logs(level)) return;
  static const char* const names[] = {"WARN", "INFO", "DEBUG"};
  Target& t = target();
  const std::lock_guard<std::mutex> hold(t.mutex);
  std::fprintf(t.file, "ringcomm %s [%s] %s\n", names[static_cast<int>(level)], t.prefix.c_str(), line.c_str());
  std::fflush(t.file);
}

}  // namespace ringcomm
