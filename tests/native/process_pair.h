// Two processes with a line between them.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "check.h"

namespace ringcomm::test {

// One side of a conversation.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  template <typename T>
  void say(const T& what) {
    CHECK_EQ(write(fd_, &what, sizeof what), static_cast<ssize_t>(sizeof what));
  }
  template <typename T>
  T hear() {
    T what;
    CHECK_EQ(recv(fd_, &what, sizeof what, MSG_WAITALL), static_cast<ssize_t>(sizeof what));
    return what;
  }
  // Both are here.
  void meet() {
    say('.');
    CHECK_EQ(hear<char>(), '.');
  }

 private:
  const int fd_;
};

// Calls side(0, line) and side(1, line), each in a child forked now; both must end well, within so many seconds.
template <typename Side>
void two_processes(unsigned seconds, Side side) {
  int fds[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  std::fflush(nullptr);
  pid_t pids[2];
  for (int i = 0; i < 2; ++i) {
    pids[i] = fork();
    if (pids[i] != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(seconds);
    close(fds[1 - i]);
    Line line(fds[i]);
    side(i, line);
    _exit(0);
  }
  close(fds[0]), close(fds[1]);
  for (pid_t pid : pids) {
    int status = -1;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
  }
}

}  // namespace ringcomm::test
