// When something breaks, every rank's calls end with one error that names the culprit, and the process goes on.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cluster.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

// The culprit as docs/hangs.md promises it. Ranks are threads of this process.
void names_culprit(const Error& e, int least = 0) {
  CHECK(e.rank >= least);
  CHECK_EQ(e.pid, static_cast<int>(getpid()));
  CHECK_EQ(std::string(e.host), "host" + std::to_string(e.rank));
}

// What its reporter was doing. In a message there is no number.
void tells_of(const Error& e, Collective collective, uint64_t sequence) {
  CHECK_EQ(e.collective, static_cast<int>(collective));
  CHECK_EQ(e.sequence, sequence);
  CHECK_EQ(e.channel, -1);
}

// Rank 0 waits in a call, by itself and by callback; `breaks` is what the others do meanwhile. Gives rank 0's error.
Error broken_by(Cluster& cluster, const std::string& name, int64_t deadline_ns,
                const std::function<void(Communicator&)>& breaks) {
  std::vector<Group>& group = cluster.make_group(name);
  Error seen;
  std::atomic<bool> started{false};
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    if (r > 0) {
      await("rank 0", [&] { return started.load(); });
      usleep(30'000);
      return breaks(comm);
    }
    std::vector<Pending> all;
    for (uint64_t k = 0; k < 3; ++k) all.push_back(all_reduce(comm, k, 5000, false, deadline_ns));
    std::atomic<bool> called{false};
    CHECK(all[1].request->attach([&called] { called = true; }));
    started = true;
    seen = failure(comm, *all[0].request);
    for (Pending& p : all) {
      const Error e = failure(comm, *p.request);
      CHECK(e.cause == seen.cause);
      CHECK_EQ(e.rank, seen.rank);
    }
    await("the callback", [&] { return called.load(); });
    Pending late = all_reduce(comm, 9, 1, true);  // the group stays failed, with the first cause
    CHECK(failure(comm, *late.request).cause == seen.cause);
  });
  return seen;
}

void abort_while_waiting(Cluster& cluster) {
  const Error e = broken_by(cluster, "abort", 0, [](Communicator& comm) { comm.abort("the test says so"); });
  CHECK(e.cause == Cause::aborted);
  names_culprit(e, 1);
  CHECK_EQ(e.reporter, e.rank);
  CHECK_EQ(e.peer, -1);
  CHECK_EQ(e.collective, -1);
  CHECK_EQ(e.sequence, uint64_t{0});
  CHECK_EQ(e.step, -1);
  CHECK_CONTAINS(e.text, "the test says so");
  CHECK_CONTAINS(e.text, "'abort'");
}

void peer_leaves(Cluster& cluster) {
  const Error e = broken_by(cluster, "leave", 0, [](Communicator& comm) { comm.leave(now_ns() + kSecond, true); });
  CHECK(e.cause == Cause::peer_left);
  names_culprit(e, 1);
  tells_of(e, Collective::all_reduce, 1);
  CHECK_EQ(e.reporter, 0);
  CHECK_EQ(e.peer, e.rank);
  CHECK_CONTAINS(e.text, "rank " + std::to_string(e.rank));
  CHECK_CONTAINS(e.text, "host" + std::to_string(e.rank));
  CHECK_CONTAINS(e.text, "all_reduce");
}

void deadline(Cluster& cluster) {
  const Error e = broken_by(cluster, "timeout", now_ns() + kSecond / 2, [](Communicator&) {});
  CHECK(e.cause == Cause::timeout);
  names_culprit(e, 1);
  tells_of(e, Collective::all_reduce, 1);
  CHECK_EQ(e.reporter, 0);
  CHECK_EQ(e.peer, e.rank);
  CHECK_EQ(e.step, -1);
  CHECK_CONTAINS(e.text, "rank " + std::to_string(e.rank));
  CHECK_CONTAINS(e.text, "all_reduce");
}

// All ranks call, with other sizes; all of them hear of it.
void mismatch(Cluster& cluster) {
  for (size_t count : {size_t{3}, size_t{4000}}) {
    std::vector<Group>& group = cluster.make_group("mismatch");
    cluster.each_rank([&](int r) {
      Communicator& comm = *group[r].comm;
      Pending first = all_reduce(comm, 1, 100, true);
      finish(comm, first);
      Pending p = all_reduce(comm, 2, count + (r == 1 ? 1 : 0), true);
      const Error e = failure(comm, *p.request);
      CHECK(e.cause == Cause::mismatch);
      names_culprit(e);
      tells_of(e, Collective::all_reduce, 2);
      CHECK(e.reporter >= 0 && e.reporter < cluster.ranks());
      CHECK_EQ(e.peer, e.rank);
      CHECK_CONTAINS(e.text, "#2");
      CHECK_CONTAINS(e.text, std::to_string(8 * count));
      CHECK_CONTAINS(e.text, std::to_string(8 * count + 8));
    });
  }
}

// Calls that look the same on every board: found by who reads what another sent, so the step is known.
void sizes_differ(Cluster& cluster) {
  std::vector<Group>& group = cluster.make_group("sizes");
  std::vector<Error> seen(static_cast<size_t>(cluster.ranks()));
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    Pending first = all_reduce(comm, 1, 100, true);
    finish(comm, first);
    Pending p = all_gather(comm, 2, r == 1 ? 20 : 10, true);
    seen[static_cast<size_t>(r)] = failure(comm, *p.request);
  });
  for (const Error& e : seen) {
    CHECK(e.cause == Cause::mismatch);
    names_culprit(e);
    tells_of(e, Collective::all_gather, 2);
    CHECK(e.rank != e.reporter && (e.rank == 1 || e.reporter == 1));
    CHECK_EQ(e.peer, e.rank);
    CHECK(e.step >= 0);
    CHECK_CONTAINS(e.text, "sizes differ in all_gather #2");
    CHECK_EQ(std::string(e.text), std::string(seen[0].text));
  }
}

// No slots to be had: an error, not a signal, and it names the key.
void out_of_memory() {
  Cluster cluster({2, 1, 2, 0, 40 << 10});
  std::vector<Group>& group = cluster.make_group("memory");
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    Pending p = all_reduce(comm, 1, 20'000, true);
    const Error e = failure(comm, *p.request);
    CHECK(e.cause == Cause::no_memory);
    names_culprit(e);
    tells_of(e, Collective::all_reduce, 1);
    CHECK_EQ(e.reporter, e.rank);
    CHECK_EQ(e.peer, -1);
    CHECK(e.step >= 0);
    CHECK_CONTAINS(e.text, "memory.limit");
  });
}

// Messages: what is under way when a peer leaves or the group is aborted ends; what had been sent before arrives.
void messages(Cluster& cluster) {
  std::vector<Group>& group = cluster.make_group("messages");
  std::atomic<bool> left{false};
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    auto small = std::make_shared<std::vector<char>>(2000), large = std::make_shared<std::vector<char>>(200'000);
    if (r == 1) {
      fill(small->data(), small->size(), 1, 1);
      RequestPtr sent = comm.send(small->data(), small->size(), 0, 1, now_ns() + 60 * kSecond, small);
      comm.leave(now_ns() + kSecond, true);
      CHECK(sent->done());
      succeeded(*sent);
      left = true;
    } else if (r == 0) {
      await("rank 1", [&] { return left.load(); });
      RequestPtr got = comm.recv(small->data(), small->size(), 1, 1, now_ns() + 60 * kSecond, small);
      CHECK(comm.wait(*got, INT64_MAX, nullptr));
      succeeded(*got);
      CHECK(holds(small->data(), small->size(), 1, 1));
      RequestPtr never = comm.recv(large->data(), large->size(), 1, 2, now_ns() + 60 * kSecond, large);
      const Error e = failure(comm, *never);
      CHECK(e.cause == Cause::peer_left);
      names_culprit(e, 1);
      tells_of(e, Collective::recv, 0);
      CHECK_EQ(e.reporter, 0);
      CHECK_EQ(e.peer, 1);
      CHECK_EQ(e.step, -1);
    }
  });
}

// abort() from one thread while others issue, wait and drive: every request ends, nobody hangs.
void abort_in_full_flight(int rounds, std::vector<int> nodes = {}) {
  ClusterOptions options{2, 2, 2, 0};
  options.nodes = std::move(nodes);
  Cluster cluster(options);
  for (int round = 0; round < rounds; ++round) {
    std::vector<Group>& group = cluster.make_group("flight" + std::to_string(round));
    std::vector<std::thread> threads;
    std::atomic<int> running{0};
    for (int r = 0; r < 2; ++r) {
      Communicator* comm = group[r].comm.get();
      threads.emplace_back([comm, &running] {
        ++running;
        for (uint64_t k = 0;; ++k) {
          Pending p = all_reduce(*comm, k, k % 7 == 0 ? 20'000 : 20, k % 2 == 0);
          CHECK(comm->wait(*p.request, INT64_MAX, nullptr));
          if (p.request->error()) return;
          p.check(*p.buffers);
        }
      });
      threads.emplace_back([comm, r, &running] {
        ++running;
        for (uint64_t k = 0;; ++k) {
          auto out = std::make_shared<std::vector<char>>(k % 5 == 0 ? 30'000 : 10),
               in = std::make_shared<std::vector<char>>(out->size());
          RequestPtr send = comm->send(out->data(), out->size(), 1 - r, 1, kNoDeadline, out);
          RequestPtr recv = comm->recv(in->data(), in->size(), k % 3 == 0 ? kAnySource : 1 - r, 1, kNoDeadline, in);
          CHECK(comm->wait(*recv, INT64_MAX, nullptr));
          CHECK(comm->wait(*send, INT64_MAX, nullptr));
          if (recv->error() || send->error()) return;
        }
      });
    }
    await("all threads", [&] { return running == 4; });
    usleep(static_cast<useconds_t>(3000 * (round + 1)));
    group[round % 2].comm->abort("in full flight");
    for (std::thread& t : threads) t.join();
    Error e;
    for (int r = 0; r < 2; ++r) {
      CHECK(group[r].comm->failed(e));
      CHECK(e.cause == Cause::aborted);
      CHECK_EQ(e.rank, round % 2);
    }
  }
}

// A process met a second time, after its last group had gone, is watched as it was the first time.
void peer_met_again(pid_t child) {
  Error error;
  auto engine = Engine::start({}, error);
  CHECK(engine != nullptr);
  // What a peer passes over the socket is its own open description, which stays open there: so does this one.
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  CHECK(pidfd >= 0);
  const auto bell = Segment::create(sizeof(Doorbell), error);
  const auto heap = Heap::create(1 << 20, error);
  const auto meet = [&] {
    return engine->peer("peer", {dup(bell->fd()), dup(pidfd), dup(heap->segment()->fd())}, error);
  };
  for (int k = 0; k < 3; ++k) CHECK(meet() != nullptr);
  const auto peer = meet();
  CHECK(peer != nullptr);
  CHECK(!peer->dead);
  kill(child, SIGKILL);
  await("the news of its death", [&] {
    usleep(1000);
    return peer->dead.load();
  });
  CHECK_EQ(waitpid(child, nullptr, 0), child);
  close(pidfd);
}

}  // namespace

int main() {
  const pid_t child = fork();  // while there is one thread only
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pause();
    _exit(0);
  }
  start("engine_failure_test", 150);
  for (const std::vector<int>& nodes : {std::vector<int>{}, {0, 1, 1}, {0, 1, 2}}) {
    ClusterOptions options{3, 1, 2, 0};
    options.nodes = nodes;
    Cluster cluster(options);
    section(nodes.empty() ? "on one node" : "over several nodes");
    section("abort");
    abort_while_waiting(cluster);
    section("a peer leaves");
    peer_leaves(cluster);
    section("deadline");
    deadline(cluster);
    section("mismatch");
    mismatch(cluster);
    section("sizes differ");
    sizes_differ(cluster);
    section("messages");
    messages(cluster);
  }
  section("out of memory");
  out_of_memory();
  section("abort in full flight");
  abort_in_full_flight(8);
  abort_in_full_flight(8, {0, 1});
  section("a peer met again");
  peer_met_again(child);
  return 0;
}
