// Ranks as threads of this process: an Engine each, groups over real segments and sockets, programs put together by
// hand.
//
// A process maps a segment once (connections/segment.h), so ThreadSanitizer sees all ranks in one address space.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "engine/communicator.h"
#include "engine/group_seed.h"
#include "programs.h"
#include "test_verbs.h"

namespace ringcomm::test {

inline constexpr int64_t kSecond = 1'000'000'000;

struct ClusterOptions {
  int ranks = 2;
  int workers = 1;
  int channels = 2;
  int64_t spin_ns = 0;
  size_t memory_limit = size_t{256} << 20;
  size_t registered = 0;        // bytes of registered memory per rank
  size_t slot = 8192;           // bytes
  std::vector<int> nodes = {};  // by rank; empty: all on one. Nodes are connected over the loopback
  bool verbs = false;           // between nodes: see test_verbs.h
};

// all_reduce: up to 1 KiB one_shot, up to 32 KiB ring, then ring with lag over two channels.
inline std::array<std::vector<Rule>, kCollectives> test_rules(int channels, size_t slot = 8192) {
  std::array<std::vector<Rule>, kCollectives> rules;
  const auto of = [&rules](Collective c) -> std::vector<Rule>& { return rules[static_cast<int>(c)]; };
  of(Collective::all_reduce) = {{1 << 10, "one_shot", 4096, 1, "test"},
                                {32 << 10, "ring", 4096, 1, "test"},
                                {UINT64_MAX, "lagging_ring", 8192, channels, "test"}};
  of(Collective::barrier) = {{UINT64_MAX, "one_shot", 4096, 1, "test"}};
  of(Collective::all_gather) = {{UINT64_MAX, "direct", slot, 1, "test"}};
  of(Collective::all_to_all) = {{UINT64_MAX, "pairwise", 4096, 1, "test"}};
  of(Collective::broadcast) = {{UINT64_MAX, "direct", 8192, channels, "test"}};
  return rules;
}

inline std::vector<int32_t> test_program(int ranks, int rank, Collective c, const std::string& schedule, int root,
                                         std::string& error) {
  if (schedule == "one_shot") return one_shot(ranks, rank);
  if (schedule == "ring" || schedule == "lagging_ring") return ring(ranks, rank, schedule == "ring" ? 0 : 1);
  if (c == Collective::all_gather) return all_gather(ranks, rank);
  if (c == Collective::all_to_all) return all_to_all(ranks, rank);
  if (c == Collective::broadcast) return broadcast(ranks, rank, root);
  error = "there is no such program";
  return {};
}

// One rank's end of a group.
struct Group {
  std::unique_ptr<GroupSeed> seed;
  CommunicatorPtr comm;
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options) : options_(options) {
    for (int r = 0; r < options.ranks; ++r) {
      Error error;
      heaps_.push_back(Heap::create(options.registered, error));
      engines_.push_back(
          Engine::start({options.workers, {options.spin_ns, 10}, options.memory_limit, heaps_.back()}, error));
      if (!engines_.back()) fail("an engine", r, error.text);
      if (options.nodes.empty()) continue;
      TcpOptions tcp;
      tcp.bind = {"127.0.0.1"};
      tcp.key = "the key of a test";
      if (!engines_.back()->open_port(tcp, 3 * kSecond, error)) fail("a port", r, error.text);
      if (options.verbs && !engines_.back()->open_verbs(test_library(), test_options(r), error))
        fail("the verbs of a rank", r, error.text);
    }
  }
  // Groups first: their segments give memory back to the engines' budgets.
  ~Cluster() {
    for (auto& group : groups_)
      for (Group& g : *group)
        if (g.seed) engines_[static_cast<size_t>(g.seed->rank())]->remove(g.comm.get());
    groups_.clear();
    // A poller may have held the last reference to a group, for a frame under way, and so to memory that another rank's engine counts: processes have one
    // engine, and share neither.
    for (auto& engine : engines_) {
      if (engine->port() == nullptr) continue;
      std::promise<void> passed;
      engine->port()->loop().at(0, [&passed] { passed.set_value(); });
      passed.get_future().wait();
    }
  }

  int ranks() const { return options_.ranks; }
  Engine& engine(int rank) { return *engines_[static_cast<size_t>(rank)]; }
  Heap& heap(int rank) { return *heaps_[static_cast<size_t>(rank)]; }

  // As init_process_group does it: seeds, cards, then everybody connects.
  std::vector<Group>& make_group(const std::string& name) {
    const ShmLayout layout{options_.ranks, options_.channels, 4, options_.slot, options_.slot, 8192};
    groups_.push_back(std::make_unique<std::vector<Group>>(options_.ranks));
    std::vector<Group>& group = *groups_.back();
    std::vector<PeerCard> cards;
    for (int r = 0; r < options_.ranks; ++r) {
      Error error;
      group[r].seed = GroupSeed::make(engine(r), r, layout, error);
      if (!group[r].seed) fail("a seed", r, error.text);
      cards.push_back(group[r].seed->card());
      cards.back().host = "host" + std::to_string(r);
      if (options_.nodes.empty()) continue;
      cards.back().node = options_.nodes[r];
      cards.back().addresses = {"127.0.0.1:" + std::to_string(engine(r).port()->port())};
    }
    each_rank([&](int r) {
      Error error;
      GroupSpec spec;
      spec.name = name;
      spec.over_verbs = options_.verbs;
      spec.caller = {options_.spin_ns, 10};
      spec.rules = test_rules(options_.channels, options_.slot);
      spec.build = [ranks = options_.ranks, r](Collective c, const std::string& s, int root, std::string& e) {
        return test_program(ranks, r, c, s, root, e);
      };
      group[r].comm = group[r].seed->connect(std::move(spec), cards, now_ns() + 30 * kSecond, error);
      if (!group[r].comm) fail("connect", r, error.text);
    });
    return group;
  }

  // `body(rank)` on a thread per rank.
  void each_rank(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < options_.ranks; ++r) threads.emplace_back(body, r);
    for (std::thread& t : threads) t.join();
  }

 private:
  const ClusterOptions options_;
  std::vector<std::shared_ptr<Heap>> heaps_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::unique_ptr<std::vector<Group>>> groups_;
};

// ---- calls

using Values = std::vector<int64_t>;
inline Chunk chunk(Values& v) { return {reinterpret_cast<char*>(v.data()), v.size()}; }
inline int64_t value(int rank, uint64_t call, size_t i) {
  return static_cast<int64_t>((static_cast<uint64_t>(rank) + 1) * 1000 + call * 17 + i);
}
inline Values values(int rank, uint64_t call, size_t count) {
  Values v(count);
  for (size_t i = 0; i < count; ++i) v[i] = value(rank, call, i);
  return v;
}

// A collective of int64 values under way, with the buffers it works on and how to check them.
struct Pending {
  RequestPtr request;
  std::shared_ptr<std::vector<Values>> buffers;
  std::function<void(const std::vector<Values>&)> check;
};

inline Call base_call(Collective c, uint64_t bytes, bool caller_waits) {
  Call call;
  call.collective = c;
  call.dtype = DType::int64, call.element = sizeof(int64_t);
  call.bytes = bytes;
  call.caller_waits = caller_waits;
  call.deadline_ns = now_ns() + 60 * kSecond;
  return call;
}

// Starts it once its buffers, chunks and check are set.
inline Pending launch(Communicator& comm, Call call, Pending p) {
  call.keep = p.buffers;
  std::string error;
  p.request = comm.start(call, error);
  if (!p.request) fail(name(call.collective), 0, error);
  return p;
}

// In place. `number` makes the values of calls differ.
inline Pending all_reduce(Communicator& comm, uint64_t number, size_t count, bool caller_waits,
                          int64_t deadline_ns = 0) {
  const int n = comm.spec().ranks;
  Pending p;
  p.buffers = std::make_shared<std::vector<Values>>(1, values(comm.spec().rank, number, count));
  Call call = base_call(Collective::all_reduce, count * sizeof(int64_t), caller_waits);
  call.op = ReduceOp::sum;
  if (deadline_ns) call.deadline_ns = deadline_ns;
  call.in = call.out = {chunk((*p.buffers)[0])};
  p.check = [n, number](const std::vector<Values>& b) {
    for (size_t i = 0; i < b[0].size(); ++i) {
      int64_t sum = 0;
      for (int r = 0; r < n; ++r) sum += value(r, number, i);
      CHECK_EQ(b[0][i], sum);
    }
  };
  return launch(comm, std::move(call), std::move(p));
}

inline Pending barrier(Communicator& comm, bool caller_waits) {
  Pending p;
  p.buffers = std::make_shared<std::vector<Values>>(1, Values(1));
  Call call = base_call(Collective::barrier, 1, caller_waits);
  call.dtype = DType::uint8, call.element = 1, call.op = ReduceOp::bor;
  call.in = call.out = {{reinterpret_cast<char*>((*p.buffers)[0].data()), 1}};
  p.check = [](const std::vector<Values>&) {};
  return launch(comm, std::move(call), std::move(p));
}

inline Pending broadcast(Communicator& comm, uint64_t number, size_t count, int root, bool caller_waits) {
  const int rank = comm.spec().rank;
  Pending p;
  p.buffers = std::make_shared<std::vector<Values>>(1, rank == root ? values(root, number, count) : Values(count));
  Call call = base_call(Collective::broadcast, count * sizeof(int64_t), caller_waits);
  call.root = root;
  if (rank == root) call.in = {chunk((*p.buffers)[0])};
  call.out = {chunk((*p.buffers)[0])};
  p.check = [=](const std::vector<Values>& b) { CHECK(b[0] == values(root, number, count)); };
  return launch(comm, std::move(call), std::move(p));
}

// Rank r brings count + r elements.
inline Pending all_gather(Communicator& comm, uint64_t number, size_t count, bool caller_waits) {
  const int n = comm.spec().ranks, rank = comm.spec().rank;
  Pending p;
  p.buffers = std::make_shared<std::vector<Values>>();
  for (int r = 0; r < n; ++r) p.buffers->emplace_back(count + static_cast<size_t>(r));
  p.buffers->push_back(values(rank, number, count + static_cast<size_t>(rank)));
  Call call = base_call(Collective::all_gather, 0, caller_waits);
  call.uniform = false;
  call.in = {chunk(p.buffers->back())};
  for (int r = 0; r < n; ++r) call.out.push_back(chunk((*p.buffers)[r]));
  p.check = [=](const std::vector<Values>& b) {
    for (int r = 0; r < n; ++r) CHECK(b[r] == values(r, number, count + static_cast<size_t>(r)));
  };
  return launch(comm, std::move(call), std::move(p));
}

inline void succeeded(const Request& request) {
  CHECK(request.done());
  if (const Error* e = request.error()) fail("a request", 0, e->text);
}

inline void finish(Communicator& comm, Pending& p) {
  CHECK(comm.wait(*p.request, INT64_MAX, nullptr));
  succeeded(*p.request);
  p.check(*p.buffers);
}

// The callback's half of a Future: waits for what a callback thread does.
inline void finish_by_callback(Pending& p) {
  auto flag = std::make_shared<std::atomic<bool>>(false);
  if (p.request->attach([flag] { flag->store(true); }))
    await("a callback", [&] {
      if (!flag->load()) usleep(50);
      return flag->load();
    });
  succeeded(*p.request);
  p.check(*p.buffers);
}

// Waits for a request that must fail; gives its error.
inline Error failure(Communicator& comm, Request& request) {
  CHECK(comm.wait(request, INT64_MAX, nullptr));
  CHECK(request.error() != nullptr);
  return *request.error();
}

}  // namespace ringcomm::test
