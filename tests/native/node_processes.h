// Ranks as processes of their own that count as nodes of their own, for what threads cannot show: kill, stop, a cut link. Forked while the test has one
// thread; they meet over memory they share with it, and connect over the loopback.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "cluster.h"

namespace ringcomm::test {

class NodeProcesses {
 public:
  static constexpr int kMost = 6;
  // What each rank does once the group is there; its end is the end of the process.
  using Body = std::function<void(NodeProcesses&, int rank, Communicator&)>;

  // `nodes`: by rank.
  NodeProcesses(std::vector<int> nodes, const Body& body) : nodes_(std::move(nodes)) {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    shared_ = new (memory) Shared;
    std::fflush(nullptr);
    for (int r = 0; r < ranks(); ++r) {
      const pid_t pid = fork();
      CHECK(pid >= 0);
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        child(r, body);
      }
      pids_.push_back(pid);
    }
  }
  ~NodeProcesses() {
    for (pid_t pid : pids_) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    munmap(shared_, sizeof(Shared));
  }

  int ranks() const { return static_cast<int>(nodes_.size()); }
  pid_t pid(int rank) const { return pids_[rank]; }
  void signal(int rank, int number) { CHECK(kill(pids_[rank], number) == 0); }

  // In a rank: one more call is through; the call has failed.
  void count(int rank) { ++shared_->calls[rank]; }
  void report(int rank, const Error& error) {
    shared_->errors[rank] = error;
    shared_->when[rank] = now_ns();
  }
  // In the test.
  int calls(int rank) const { return shared_->calls[rank]; }
  void all_have_called(int calls) {
    for (int r = 0; r < ranks(); ++r)
      await("calls of all ranks", [&] {
        usleep(1000);
        for (int i = 0; i < ranks(); ++i)
          if (int status; waitpid(pids_[i], &status, WNOHANG) > 0) fail("a rank ended", i, std::to_string(status));
        return shared_->calls[r] >= calls;
      });
  }
  Error failure_of(int rank, int64_t since_ns, double* seconds) {
    await("the failure of a rank", [&] {
      usleep(1000);
      return shared_->when[rank] != 0;
    });
    *seconds = static_cast<double>(shared_->when[rank] - since_ns) * 1e-9;
    return shared_->errors[rank];
  }

 private:
  struct Shared {
    std::atomic<int> cards{0};
    char card[kMost][512] = {};
    std::atomic<int> calls[kMost] = {};
    std::atomic<int64_t> when[kMost] = {};
    Error errors[kMost];
  };

  [[noreturn]] void child(int rank, const Body& body) {
    Error error;
    auto engine = Engine::start({}, error);
    TcpOptions tcp;
    tcp.bind = {"127.0.0.1"};
    if (!engine || !engine->open_port(tcp, 3 * kSecond, error)) fail("an engine", rank, error.text);
    auto seed = GroupSeed::make(*engine, rank, {ranks(), 1, 4, 8192, 8192, 8192}, error);
    if (!seed) fail("a seed", rank, error.text);
    const PeerCard own = seed->card();
    std::snprintf(shared_->card[rank], sizeof shared_->card[rank], "%s %s %s %d %d", own.socket.c_str(),
                  own.nonce.c_str(), own.process.c_str(), own.pid, engine->port()->port());
    ++shared_->cards;
    await("all cards", [&] {
      usleep(1000);
      return shared_->cards == ranks();
    });
    std::vector<PeerCard> cards(ranks());
    for (int r = 0; r < ranks(); ++r) {
      std::string port;
      std::istringstream(shared_->card[r]) >> cards[r].socket >> cards[r].nonce >> cards[r].process >> cards[r].pid >>
          port;
      cards[r].host = "host" + std::to_string(r);
      cards[r].node = nodes_[r];
      cards[r].addresses = {"127.0.0.1:" + port};
    }
    GroupSpec spec;
    spec.name = "processes";
    spec.rules = test_rules(1);
    spec.build = [this, rank](Collective c, const std::string& s, int root, std::string& e) {
      return test_program(ranks(), rank, c, s, root, e);
    };
    const CommunicatorPtr comm = seed->connect(std::move(spec), cards, now_ns() + 30 * kSecond, error);
    if (!comm) fail("connect", rank, error.text);
    body(*this, rank, *comm);
    pause();
    _exit(0);
  }

  const std::vector<int> nodes_;
  Shared* shared_;
  std::vector<pid_t> pids_;
};

}  // namespace ringcomm::test
