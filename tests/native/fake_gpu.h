// The inside of fake_cuda.h: its objects. One lock for the maps; streams have their own, taken after it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "fake_cuda.h"

namespace ringcomm::cu {

struct Context {
  Device device = 0;
  std::atomic<int> retained{0};
};
struct Module {
  Context* context;
};
struct Function {
  std::string name;
  size_t bytes;
  std::function<void(const test::FakeLaunch&)> call;
};
struct Event {
  std::shared_ptr<std::atomic<bool>> recorded;  // of the latest record; null: none yet
};

// Returns false while it must wait.
using Work = std::function<bool()>;

struct Stream {
  explicit Stream(Context* of) : context(of), thread([this] { run(); }) {}
  ~Stream();
  void enqueue(Work work);
  // How much has been enqueued, and whether so much has been done.
  uint64_t enqueued();
  bool has_done(uint64_t count);

  Context* const context;
  std::atomic<bool> capturing{false};
  std::atomic<bool> unordered{false};
  std::vector<Work> captured;

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  uint64_t enqueued_ = 0, done_ = 0;
  bool closing_ = false;
  std::thread thread;  // last: runs when all else is there
};

}  // namespace ringcomm::cu

namespace ringcomm::test::gpu {

// In front of device memory, in the memfd.
struct Header {
  static constexpr size_t kBytes = 4096;
  static constexpr int kMost = 16;
  uint64_t serial;
  std::atomic<int> pids[kMost];  // of the processes that have it open
};

enum class Kind { device, imported, host, registered };
struct Memory {
  Kind kind;
  size_t bytes;
  int fd = -1;
  Header* header = nullptr;
  char* host = nullptr;  // the host's address of mapped memory
  uint64_t serial = 0;
  int opens = 0;  // of imported memory
  cu::Context* context = nullptr;
};

struct Failing {
  int left;
  cu::Result result;
};

struct State {
  std::mutex mutex;
  FakeMachine machine;
  pid_t pid = 0;  // that called cuInit
  std::map<int, cu::Context> contexts;
  std::map<uintptr_t, Memory> memory;  // by the device's address
  std::set<cu::Stream*> streams;
  std::map<cu::Context*, cu::Stream*> default_streams;
  std::set<cu::Event*> events;
  std::set<cu::Module*> modules;
  std::map<std::string, cu::Function> kernels;
  std::map<std::string, Failing> failing;
  std::map<std::string, int> calls;
  std::vector<std::string> log;
  std::string misuse;
  std::atomic<int> resets{0};
};
State& state();

// By name: kernels.cu, compiled for the host (fake_cuda_kernels.cpp).
std::map<std::string, cu::Function>& real_kernels();

// What every call begins with: counted, failed where the test wants it, and only with what it needs.
enum class Needs { nothing, init, context };
cu::Result enter(const char* name, Needs needs);
cu::Context* current();
// Notes it, with the call last entered in this thread. The lock must not be held.
cu::Result misused(const std::string& text, cu::Result result = cu::kInvalidValue);
// The same with any text, under the lock.
void note(const std::string& text);

// The memory that holds all these bytes; null: none does. Under the lock.
const Memory* holding(uintptr_t address, size_t bytes, uintptr_t* base = nullptr);
// The same, noting misuse; without the lock.
bool reachable(cu::DevicePtr address, size_t bytes, const char* what);

#define FAKE_CUDA(name, parameters) \
  extern "C" __attribute__((visibility("default"))) ringcomm::cu::Result name parameters
#define ENTER(name, needs) \
  if (const cu::Result entered = gpu::enter(name, gpu::Needs::needs); entered != cu::kSuccess) return entered

}  // namespace ringcomm::test::gpu
