// A CUDA driver without hardware: functions of the same names as libcuda.so.1 exports, and a Driver with them in its table. For tests only, never shipped.
//
// Device memory is a memfd, so that other processes can open it by its IPC handle; a stream is a thread with a queue, so everything enqueued runs later, at any
// time, in the order of its stream alone; memops store and load flags with release and acquire; a launch calls a function that the test has registered under the kernel's name, or else
// the kernel of that name in kernels.cu, compiled for the host (fake_cuda_kernels.cpp).
//
// It is strict where the driver is undefined or lenient. A misuse is answered with an error and noted, and every test ends by asking for the notes:
//   calls before cuInit, without the context, in a forked child; addresses that are no device's (the host's own address of mapped memory too); memory used after its
//   free; memory freed while other processes have it open, or while a stream waits for ever; an own IPC handle opened; a handle of an address that is no base; a stream
//   destroyed with work to do; events and streams asked beside a global capture by a thread that has not said it may.
// Where the environment has FAKE_CUDA_ABORT the first misuse ends the process: for programs that cannot ask.
// What it cannot show is in docs/cuda.md.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace ringcomm::test {

// The machine that the fake driver pretends. Devices are the same ones, by UUID, in every process.
struct FakeMachine {
  int devices = 1;
  int first = 0;  // number of the first device that this process sees
  bool peer_access = true;
  int compute_mode = 0;
  int version = 13000;
};

// As if the process had just begun. Not while anything is live.
void fake_cuda_reset(const FakeMachine& machine = {});
// Initialised.
const cuda::Driver& fake_cuda();

struct FakeLaunch {
  unsigned blocks, threads;
  const void* parameter;
};
// In every module from here on, instead of the real one. `bytes` of the parameter are copied at the launch.
void fake_cuda_kernel(const std::string& name, size_t bytes, std::function<void(const FakeLaunch&)> function);
// What a module is loaded from.
const void* fake_cuda_image();

// The `nth` call (from 1) of this exported name from here on gives the result, once, and does nothing.
void fake_cuda_fail(const std::string& name, int nth, cu::Result result);
// How often each name was called, and the names in order (queries left out), since the reset.
int fake_cuda_calls(const std::string& name);
std::vector<std::string> fake_cuda_log();
// Notes of misuse since the reset, one a line.
std::string fake_cuda_misuse();
void fake_cuda_forget_misuse();
// A process that has ended, though nobody may have waited for it.
bool fake_cuda_is_dead(int pid);

// What has been made and not been given back.
struct FakeLive {
  int contexts = 0, memory = 0, imported = 0, host = 0, streams = 0, events = 0, modules = 0;
  bool operator==(const FakeLive&) const = default;
  bool none() const { return *this == FakeLive{}; }
};
FakeLive fake_cuda_live();

// Work enqueued to the stream is kept and not done while it captures; each replay enqueues all that was kept. The same mode, global (what torch takes by default) or relaxed, on and off.
void fake_cuda_capture(cu::Stream* stream, bool on, cu::CaptureMode mode = cu::kCaptureRelaxed);
void fake_cuda_replay(cu::Stream* stream);

}  // namespace ringcomm::test
