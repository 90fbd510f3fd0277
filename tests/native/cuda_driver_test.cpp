// The CUDA driver is found, or the reason why not is one that people can use. The fake driver is opened here as a library of its own; elsewhere it is linked in.
#include "cuda/driver.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <set>

#include "check.h"
#include "fake_cuda.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

std::string beside_this_program(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

void opens_a_library() {
  section("a library with all functions opens, once");
  std::string why_not;
  const std::string path = beside_this_program("libfake_cuda.so");
  const cuda::Driver* const driver = cuda::open_driver(path, why_not);
  CHECK_EQ(why_not, std::string());
  CHECK(driver != nullptr);
  CHECK_EQ(driver->version, 13000);
  CHECK_EQ(driver->devices, 1);
  CHECK(cuda::open_driver(path, why_not) == driver);
  int count = 0;
  CHECK_EQ(driver->table.device_count(&count), cu::kSuccess);
  CHECK_EQ(count, 1);
  CHECK_EQ(fake_cuda_calls("cuDeviceGetCount"), 0);  // it is not the one linked into this program

  section("a child forked afterwards is told why it cannot");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    CHECK(cuda::open_driver(path, why_not) == nullptr);
    CHECK_CONTAINS(why_not, "this process was forked from one that uses CUDA (" + std::to_string(getppid()) + ")");
    CHECK_CONTAINS(why_not, "spawn or forkserver");
    _exit(0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

void says_why_not() {
  section("no library, or one that lacks a function");
  std::string why_not;
  CHECK(cuda::open_driver("libno-such-driver.so.1", why_not) == nullptr);
  CHECK_CONTAINS(why_not, "libno-such-driver.so.1 cannot be opened (");
  CHECK_CONTAINS(why_not, "no CUDA driver here");
  CHECK(cuda::open_driver("libm.so.6", why_not) == nullptr);
  CHECK_EQ(why_not, std::string("libm.so.6 has no cuInit: it is too old (CUDA 11.7 or newer is needed)"));
  // A good one does not make up for a bad one, nor the other way.
  CHECK(cuda::open_driver(beside_this_program("libfake_cuda.so"), why_not) != nullptr);
  CHECK(cuda::open_driver("libm.so.6", why_not) == nullptr);

  section("a driver that does not start");
  cuda::Driver driver = fake_cuda();
  const auto refused = [&](const std::string& text) {
    std::string why;
    CHECK(!cuda::start_driver(driver, why));
    CHECK_CONTAINS(why, text);
  };
  fake_cuda_reset({.devices = 0});
  refused("cuInit failed with CUDA_ERROR_NO_DEVICE (100)");
  refused("the driver sees no GPU");
  fake_cuda_reset();
  fake_cuda_fail("cuInit", 1, cu::kStubLibrary);
  refused("cuInit failed with CUDA_ERROR_STUB_LIBRARY (34)");
  fake_cuda_fail("cuInit", 1, cu::kSystemDriverMismatch);
  refused("restart the machine");
  fake_cuda_fail("cuInit", 1, cu::kUnknown);
  refused("cuInit failed with unknown CUDA error (999)");
  fake_cuda_fail("cuDriverGetVersion", 1, cu::kInvalidValue);
  refused("cuDriverGetVersion failed with CUDA_ERROR_INVALID_VALUE (1)");
  fake_cuda_fail("cuDeviceGetCount", 1, cu::kNotInitialized);
  refused("cuDeviceGetCount failed with CUDA_ERROR_NOT_INITIALIZED (3)");
  std::string why;
  CHECK(cuda::start_driver(driver, why));
}

void errors_as_text() {
  section("an error says the call, the driver's name and number, and what it was for");
  const cu::Table& table = fake_cuda().table;
  Error error;
  CHECK(cuda::succeeded(table, cu::kSuccess, "cuMemAlloc", "12 bytes", error));
  CHECK(!error);
  CHECK(!cuda::succeeded(table, cu::kOutOfMemory, "cuMemAlloc", "12 bytes", error));
  CHECK(error.cause == Cause::no_memory);
  CHECK_EQ(std::string(error.text),
           std::string("cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; 12 bytes"));
  CHECK(!cuda::succeeded(table, static_cast<cu::Result>(12345), "cuEventQuery", "", error));
  CHECK(error.cause == Cause::connection);
  CHECK_CONTAINS(std::string(error.text), "cuEventQuery failed with unknown CUDA error (12345)");
}

void table_is_whole() {
  section("every member of the table has a name of its own");
  std::set<std::string> names;
#define NAME(member, name, parameters) names.insert(#name);
  RINGCOMM_CUDA_FUNCTIONS(NAME)
#undef NAME
  CHECK_EQ(names.size() * sizeof(void*), sizeof(cu::Table));
}

}  // namespace

int main() {
  start("cuda_driver_test", 60);
  opens_a_library();
  says_why_not();
  errors_as_text();
  table_is_whole();
  CHECK_EQ(fake_cuda_misuse(), std::string());
  return 0;
}
