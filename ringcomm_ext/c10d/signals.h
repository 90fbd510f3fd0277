// Ctrl-C in calls that wait.
#pragma once

#include <exception>

namespace ringcomm {

// Runs Python's signal handlers; true if one raised (then the exception is in `raised`). False at once on any thread but the main one.
bool signals_raise(std::exception_ptr& raised);

}  // namespace ringcomm
