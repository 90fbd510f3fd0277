#include "c10d/signals.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace py = pybind11;

namespace ringcomm {

bool signals_raise(std::exception_ptr& raised) {
  // Python runs handlers on its main thread only, which is the process's; others need not wait for Python's lock here.
  if (!Py_IsInitialized() || gettid() != getpid()) return false;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return false;
  try {
    throw py::error_already_set();
  } catch (...) {
    raised = std::current_exception();
  }
  return true;
}

}  // namespace ringcomm
