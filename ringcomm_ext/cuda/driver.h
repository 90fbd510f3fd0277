// The CUDA driver, opened at run time: one table of functions, or why there is none. No other file knows how it is found, and a test puts a driver of its own behind
// the same table. cudart is not used: the process may hold any version of it.
#pragma once

#include <string>

#include "core/status.h"
#include "cuda/driver_abi.h"

namespace ringcomm::cuda {

inline constexpr const char* kDriverLibrary = "libcuda.so.1";

// An opened and initialised driver. Any thread. Never closed: it leaves threads behind.
struct Driver {
  cu::Table table{};
  int version = 0;  // 1000 * major + 10 * minor of the newest CUDA it knows
  int devices = 0;
};

// The driver in this library, a name as dlopen takes it; opened and initialised once per path. Null and `why_not`, for people to read, where it cannot be used: no library, a
// function that it lacks, no device. A process that forked after the first call cannot use CUDA in the child, and is told so.
const Driver* open_driver(const std::string& path, std::string& why_not);

// Initialises a driver whose table is there. False and `why_not` as above.
bool start_driver(Driver& driver, std::string& why_not);

// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"; for numbers that the driver does not know too.
std::string result_text(const cu::Table& table, cu::Result result);

// True where the call succeeded. Else fills in `error`: "cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; " and `what`, if it is not empty.
bool succeeded(const cu::Table& table, cu::Result result, const char* call, const std::string& what, Error& error);

}  // namespace ringcomm::cuda
