// Groups over several nodes: calls give the right values, and whatever happens to a rank of another node, the others name it. What threads can show
// of failures across nodes is in engine_failure_test.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "node_calls.h"
#include "node_processes.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

void monitored(const std::vector<int>& nodes) {
  ClusterOptions options;
  options.ranks = static_cast<int>(nodes.size()), options.nodes = nodes;
  Cluster cluster(options);
  std::vector<Group>& group = cluster.make_group("monitored");
  const auto no_signal = [] { return false; };
  cluster.each_rank([&](int r) {
    for (int k = 0; k < 5; ++k) CHECK_EQ(group[r].comm->monitored_barrier(20 * kSecond, false, no_signal), "");
  });
  for (int absent : {options.ranks - 1, 0}) {
    std::atomic<int> given_up{0};
    cluster.each_rank([&](int r) {
      Communicator& comm = *group[r].comm;
      if (r == absent) {
        await("the others", [&] {
          usleep(1000);
          return given_up == options.ranks - 1;
        });
        CHECK_CONTAINS(comm.monitored_barrier(kSecond, false, no_signal), "came too late");
      } else {
        const std::string error = comm.monitored_barrier(kSecond / 2, true, no_signal);
        CHECK_CONTAINS(error, "Rank " + std::to_string(absent) + " failed to pass monitoredBarrier");
        ++given_up;
      }
    });
    cluster.each_rank([&](int r) { CHECK_EQ(group[r].comm->monitored_barrier(20 * kSecond, false, no_signal), ""); });
  }
}

// Calls until one fails.
NodeProcesses::Body call_until_failure(int64_t timeout_ns) {
  return [timeout_ns](NodeProcesses& world, int rank, Communicator& comm) {
    for (uint64_t k = 0;; ++k) {
      Pending p = all_reduce(comm, k, k % 3 == 0 ? 4000 : 10, true, now_ns() + timeout_ns);
      CHECK(comm.wait(*p.request, INT64_MAX, nullptr));
      if (const Error* e = p.request->error()) return world.report(rank, *e);
      p.check(*p.buffers);
      world.count(rank);
    }
  };
}

void names_culprit(NodeProcesses& world, int culprit, int64_t since, double within, Cause cause) {
  std::string first;
  for (int r = 0; r < world.ranks(); ++r) {
    if (r == culprit) continue;
    double seconds = 0;
    const Error e = world.failure_of(r, since, &seconds);
    std::printf("    rank %d after %.2f s: %s\n", r, seconds, e.text);
    if (first.empty()) first = e.text;
    CHECK_EQ(first, std::string(e.text));
    CHECK(e.cause == cause);
    CHECK_EQ(e.rank, culprit);
    CHECK_EQ(e.pid, static_cast<int>(world.pid(culprit)));
    CHECK_CONTAINS(e.text, "rank " + std::to_string(culprit));
    CHECK_CONTAINS(e.text, "host" + std::to_string(culprit));
    CHECK_CONTAINS(e.text, std::to_string(world.pid(culprit)));
    if (within > 0) CHECK(seconds < within);
  }
}

void death(const std::vector<int>& nodes, int victim) {
  NodeProcesses world(nodes, call_until_failure(60 * kSecond));
  world.all_have_called(20);
  const int64_t at = now_ns();
  world.signal(victim, SIGKILL);
  names_culprit(world, victim, at, 3, Cause::peer_died);
}

// A rank dies before its call, while the one that would wait for it is elsewhere: nobody waits for it directly.
void death_of_one_nobody_waits_for() {
  NodeProcesses world({0, 1, 2}, [](NodeProcesses& w, int rank, Communicator& comm) {
    Pending first = all_reduce(comm, 0, 4000, true);
    finish(comm, first);
    w.count(rank);
    if (rank > 0) pause();
    Pending p = all_reduce(comm, 1, 4000, true);
    w.report(rank, failure(comm, *p.request));
  });
  world.all_have_called(1);
  usleep(50'000);
  const int64_t at = now_ns();
  world.signal(1, SIGKILL);
  double seconds = 0;
  const Error e = world.failure_of(0, at, &seconds);
  CHECK(e.cause == Cause::peer_died);
  CHECK_EQ(e.rank, 1);
  CHECK(seconds < 3);
}

void stopped(const std::vector<int>& nodes, int victim) {
  NodeProcesses world(nodes, call_until_failure(4 * kSecond));  // longer than a silent host would be put up with
  world.all_have_called(5);
  const int64_t at = now_ns();
  world.signal(victim, SIGSTOP);
  names_culprit(world, victim, at, 0, Cause::timeout);
}

// A network of its own, in which the loopback is the link. False where the system does not allow it.
bool set_loopback(bool up) {
  const int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::snprintf(request.ifr_name, sizeof request.ifr_name, "lo");
  bool done = s >= 0 && ioctl(s, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  done = done && ioctl(s, SIOCSIFFLAGS, &request) == 0;
  if (s >= 0) close(s);
  return done;
}

void cut_link() {
  if ((unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) || !set_loopback(true)) {
    std::printf("    skipped: no network namespaces here\n");
    return;
  }
  NodeProcesses world({0, 1}, call_until_failure(60 * kSecond));
  world.all_have_called(20);
  const int64_t at = now_ns();
  CHECK(set_loopback(false));
  for (int r = 0; r < 2; ++r) {
    double seconds = 0;
    const Error e = world.failure_of(r, at, &seconds);
    std::printf("    rank %d after %.2f s: %s\n", r, seconds, e.text);
    CHECK_EQ(e.rank, 1 - r);
    CHECK(e.cause == Cause::peer_died);
    CHECK_CONTAINS(e.text, "the link to it is cut");
    CHECK(seconds < 3);
  }
  CHECK(set_loopback(true));
}

}  // namespace

int main() {
  start("engine_nodes_test", 240);
  section("death");  // processes first: they are forked while there is one thread
  death({0, 1}, 1);
  death({0, 0, 1, 1}, 3);
  death({0, 1, 2}, 0);
  death_of_one_nobody_waits_for();
  section("stopped");
  stopped({0, 1, 1}, 1);
  section("cut link");
  cut_link();
  for (const std::vector<int>& nodes : {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 1, 2}, {0, 1, 0}}) {
    section(("calls over " + std::to_string(nodes.size()) + " ranks").c_str());
    calls(nodes);
  }
  section("one leaves at once");
  leaves_at_once({0, 1});
  leaves_at_once({0, 0, 1});
  section("gone as soon as made");
  gone_as_soon_as_made();
  section("monitored barrier");
  monitored({0, 0, 1});
  monitored({0, 1, 2});
  return 0;
}
