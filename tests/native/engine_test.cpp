// The engine with ranks as threads: thousands of calls of all sizes, waited for in every way, from many threads, over
// several groups.
#include <array>
#include <deque>

#include "cluster.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

size_t random_count(Random& random) {  // elements of 8 bytes: mostly inline and one slot, now and then up to 200 KB
  if (random.one_in(20)) return random.below(25'000);
  return random.one_in(3) ? random.below(1500) : random.below(12);
}

// The same call on every rank: which one and how large comes from the call's number.
Pending any_call(Communicator& comm, uint64_t number, bool caller_waits) {
  Random random(number);
  const size_t count = random_count(random);
  switch (random.below(6)) {
    case 0:
      return broadcast(comm, number, count, static_cast<int>(random.below(comm.spec().ranks)), caller_waits);
    case 1:
      return all_gather(comm, number, count, caller_waits);
    case 2:
      return barrier(comm, caller_waits);
    default:
      return all_reduce(comm, number, count, caller_waits);
  }
}

// One after the other, each waited for by its caller.
void synchronous(Cluster& cluster, int calls) {
  std::vector<Group>& group = cluster.make_group("synchronous");
  cluster.each_rank([&](int r) {
    for (uint64_t k = 0; k < static_cast<uint64_t>(calls); ++k) {
      Pending p = any_call(*group[r].comm, k, true);
      finish(*group[r].comm, p);
    }
    CHECK_EQ(group[r].comm->sequence(), static_cast<uint64_t>(calls));
  });
}

// Several under way at once, finished in an order of each rank's own, by wait and by callback.
void asynchronous(Cluster& cluster, int calls) {
  std::vector<Group>& group = cluster.make_group("asynchronous");
  cluster.each_rank([&](int r) {
    Random random(static_cast<uint64_t>(r) + 70);
    std::deque<Pending> open;
    for (uint64_t k = 0; k < static_cast<uint64_t>(calls); ++k) {
      open.push_back(any_call(*group[r].comm, 10'000 + k, false));
      while (open.size() > random.below(8)) {
        const size_t i = random.below(open.size());
        if (random.one_in(2))
          finish(*group[r].comm, open[i]);
        else
          finish_by_callback(open[i]);
        open.erase(open.begin() + static_cast<ptrdiff_t>(i));
      }
    }
    for (Pending& p : open) finish(*group[r].comm, p);
  });
}

// Nobody waits at all: callbacks alone, as DDP's hooks do; what they count must come out.
void by_callbacks_alone(Cluster& cluster, int calls) {
  std::vector<Group>& group = cluster.make_group("callbacks");
  cluster.each_rank([&](int r) {
    std::atomic<int> ended{0};
    std::vector<Pending> all;
    for (int k = 0; k < calls; ++k) {
      all.push_back(any_call(*group[r].comm, 20'000 + static_cast<uint64_t>(k), false));
      if (!all.back().request->attach([&ended] { ++ended; })) ++ended;
    }
    await("all callbacks", [&] {
      usleep(50);
      return ended == calls;
    });
    for (Pending& p : all) {
      succeeded(*p.request);
      p.check(*p.buffers);
    }
  });
}

// A callback starts the next call and waits for it: no engine thread may be inside it.
void callbacks_that_call(Cluster& cluster) {
  constexpr uint64_t kDepth = 40;
  std::vector<Group>& group = cluster.make_group("chain");
  struct Chain : std::enable_shared_from_this<Chain> {  // each callback holds it
    explicit Chain(Communicator& comm) : comm(comm) {}
    Communicator& comm;
    std::atomic<uint64_t> at{0};
    void next() {  // on a callback thread, or on the caller's where the call had ended already
      const uint64_t k = at.load();
      if (k == kDepth) return;
      auto p = std::make_shared<Pending>(all_reduce(comm, 30'000 + k, 10 + k * 50, false));
      if (k % 2) {
        finish(comm, *p);
        at = k + 1;
        return next();
      }
      const auto then = [self = shared_from_this(), p, k] {
        succeeded(*p->request);
        p->check(*p->buffers);
        self->at = k + 1;
        self->next();
      };
      if (!p->request->attach(then)) then();
    }
  };
  cluster.each_rank([&](int r) {
    const auto chain = std::make_shared<Chain>(*group[r].comm);
    chain->next();
    await("the last callback", [&] {
      usleep(50);
      return chain->at == kDepth;
    });
  });
}

struct Transfer {
  RequestPtr request;
  std::shared_ptr<std::vector<char>> data;
};

Transfer send(Communicator& comm, int peer, int tag, size_t bytes, uint64_t k) {
  Transfer t{nullptr, std::make_shared<std::vector<char>>(bytes)};
  fill(t.data->data(), bytes, static_cast<uint64_t>(tag), k);
  t.request = comm.send(t.data->data(), bytes, peer, tag, now_ns() + 60 * kSecond, t.data);
  return t;
}

Transfer recv(Communicator& comm, int peer, int tag, size_t bytes) {
  Transfer t{nullptr, std::make_shared<std::vector<char>>(bytes)};
  t.request = comm.recv(t.data->data(), bytes, peer, tag, now_ns() + 60 * kSecond, t.data);
  return t;
}

void finish(Communicator& comm, Transfer& t) {
  CHECK(comm.wait(*t.request, INT64_MAX, nullptr));
  succeeded(*t.request);
}

size_t message_size(int tag, uint64_t k) {
  Random random(static_cast<uint64_t>(tag) * 100'000 + k);
  return random.one_in(8) ? random.below(100'000) : random.below(100);
}

// Each thread exchanges with every rank, itself too, under a tag of its own.
void exchange(Communicator& comm, int tag, uint64_t rounds) {
  for (uint64_t k = 0; k < rounds; ++k) {
    std::vector<Transfer> sends, recvs;
    for (int peer = 0; peer < comm.spec().ranks; ++peer) {
      sends.push_back(send(comm, peer, tag, message_size(tag, k), k));
      recvs.push_back(recv(comm, peer, tag, message_size(tag, k)));
    }
    for (size_t i = recvs.size(); i-- > 0;) {
      finish(comm, recvs[i]);
      CHECK(holds(recvs[i].data->data(), recvs[i].data->size(), static_cast<uint64_t>(tag), k));
      CHECK_EQ(recvs[i].request->source, static_cast<int>(i));
      finish(comm, sends[i]);
    }
  }
}

void from_any_source(Cluster& cluster, uint64_t rounds) {
  std::vector<Group>& group = cluster.make_group("any source");
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    if (r > 0) {
      for (uint64_t k = 0; k < rounds; ++k) {
        Transfer t = send(comm, 0, 3, 5000, k);
        finish(comm, t);
      }
      return;
    }
    std::vector<uint64_t> next(cluster.ranks(), 0);
    for (uint64_t k = 0; k < rounds * (static_cast<uint64_t>(cluster.ranks()) - 1); ++k) {
      Transfer t = recv(comm, kAnySource, 3, 5000);
      finish(comm, t);
      CHECK(holds(t.data->data(), 5000, 3, next.at(t.request->source)++));
    }
    for (int from = 1; from < cluster.ranks(); ++from) CHECK_EQ(next[from], rounds);
  });
}

// Per rank and group: one thread makes collectives, two exchange messages; all groups at once.
void many_threads(Cluster& cluster, int groups, int calls) {
  std::vector<std::vector<Group>*> all;
  for (int g = 0; g < groups; ++g) all.push_back(&cluster.make_group("many" + std::to_string(g)));
  std::vector<std::thread> threads;
  for (int g = 0; g < groups; ++g)
    for (int r = 0; r < cluster.ranks(); ++r) {
      Communicator* comm = (*all[g])[r].comm.get();
      threads.emplace_back([=] {
        Random random(static_cast<uint64_t>(g * 10 + r));
        for (int k = 0; k < calls; ++k) {
          Pending p = any_call(*comm, 40'000 + static_cast<uint64_t>(g * 1000 + k), random.one_in(2));
          finish(*comm, p);
        }
      });
      for (int tag : {1, 2})
        threads.emplace_back([=] { exchange(*comm, tag + 10 * g, static_cast<uint64_t>(calls) / 8); });
    }
  for (std::thread& t : threads) t.join();
}

// A wait that is given up leaves the call under way.
void waits_that_end_early(Cluster& cluster) {
  std::vector<Group>& group = cluster.make_group("early");
  std::atomic<bool> given_up{false};
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    if (r > 0) await("rank 0", [&] { return given_up.load(); });
    Pending p = all_reduce(comm, 1, 100, r > 0);
    if (r == 0) {
      CHECK(!comm.wait(*p.request, now_ns() + kSecond / 50, nullptr));
      bool asked = false;
      CHECK(!comm.wait(*p.request, INT64_MAX, [&] { return asked = true; }));
      CHECK(asked);
      given_up = true;
    }
    finish(comm, p);
  });
}

// Groups come and go while others work.
void groups_come_and_go(Cluster& cluster, int times) {
  std::vector<Group>& stays = cluster.make_group("stays");
  for (int k = 0; k < times; ++k) {
    std::vector<Group>& group = cluster.make_group("goes" + std::to_string(k));
    cluster.each_rank([&](int r) {
      Pending kept = all_reduce(*stays[r].comm, static_cast<uint64_t>(k), 3000, false);
      for (uint64_t i = 0; i < 5; ++i) {
        Pending p = any_call(*group[r].comm, 50'000 + i, true);
        finish(*group[r].comm, p);
      }
      group[r].comm->leave(now_ns() + 2 * kSecond, true);
      cluster.engine(r).remove(group[r].comm.get());
      finish(*stays[r].comm, kept);
    });
  }
}

void run(const ClusterOptions& options, int calls) {
  std::printf(" %d ranks, %d workers, spin %lld ns\n", options.ranks, options.workers,
              static_cast<long long>(options.spin_ns));
  Cluster cluster(options);
  section("synchronous");
  synchronous(cluster, calls);
  section("asynchronous");
  asynchronous(cluster, calls / 2);
  section("by callbacks alone");
  by_callbacks_alone(cluster, calls / 3);
  section("callbacks that call");
  callbacks_that_call(cluster);
  section("any source");
  from_any_source(cluster, 60);
  section("many threads, several groups");
  many_threads(cluster, 2, calls / 8);
  section("waits that end early");
  waits_that_end_early(cluster);
  section("groups come and go");
  groups_come_and_go(cluster, 4);
}

}  // namespace

int main() {
  start("engine_test", 200);
  run({2, 1, 2, 20'000}, 2400);
  run({3, 2, 2, 0}, 1200);
  return 0;
}
