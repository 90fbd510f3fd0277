// How the engine starts a thread: named, and with all signals blocked, so that signals reach the program's own threads (Ctrl-C the main one).
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>
#include <utility>

namespace ringcomm {

template <typename Body>
std::thread start_thread(const char* name, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

// For a thread that must not go back to Python any more: it ends with the process.
[[noreturn]] inline void park() {
  while (true) pause();
}

}  // namespace ringcomm
