// Registered memory through the engine: results, and what happens when the rank that lends fails, leaves or gives the memory up.
#include <signal.h>
#include <sys/mman.h>

#include <cstring>

#include "cluster.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr size_t kCount = 40'000;  // int64 values: many pieces, which is what lending starts at

// `count` int64 values of one rank's registered memory.
int64_t* registered(Cluster& cluster, int rank, size_t count) {
  Error error;
  char* data = cluster.heap(rank).allocate(count * sizeof(int64_t), error);
  if (data == nullptr) fail("registered memory", rank, error.text);
  return reinterpret_cast<int64_t*>(data);
}

RequestPtr go(Communicator& comm, const Call& call) {
  std::string error;
  RequestPtr request = comm.start(call, error);
  if (!request) fail(name(call.collective), 0, error);
  return request;
}

Chunk chunk_of(int64_t* data, size_t count) { return {reinterpret_cast<char*>(data), count}; }

// All ranks gather shards of `count`; `in` is this rank's.
RequestPtr gather(Communicator& comm, int64_t* in, int64_t* out, size_t count, int64_t deadline_ns = 0) {
  const size_t n = static_cast<size_t>(comm.spec().ranks);
  Call call = base_call(Collective::all_gather, n * count * sizeof(int64_t), true);
  if (deadline_ns) call.deadline_ns = deadline_ns;
  call.in = {chunk_of(in, count)};
  for (size_t r = 0; r < n; ++r) call.out.push_back(chunk_of(out + r * count, count));
  return go(comm, call);
}

void reduce_in_place(Cluster& cluster) {
  std::vector<Group>& group = cluster.make_group("reduce");
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    int64_t* data = registered(cluster, r, kCount);
    for (uint64_t k = 0; k < 20; ++k) {
      const Values mine = values(r, k, kCount);
      std::memcpy(data, mine.data(), kCount * sizeof(int64_t));
      Call call = base_call(Collective::all_reduce, kCount * sizeof(int64_t), true);
      call.op = ReduceOp::sum;
      call.in = call.out = {chunk_of(data, kCount)};
      const RequestPtr request = go(comm, call);
      CHECK(comm.wait(*request, INT64_MAX, nullptr));
      succeeded(*request);
      CHECK(request->borrowed.load());
      CHECK(!request->lends.load());
      for (size_t i = 0; i < kCount; i += 7) {
        int64_t sum = 0;
        for (int rank = 0; rank < cluster.ranks(); ++rank) sum += value(rank, k, i);
        CHECK_EQ(data[i], sum);
      }
    }
    cluster.heap(r).release(data);
  });
}

// Rank 0's call goes on until rank 1 has come and read; the memory may go back the moment it ends.
void freed_when_done(Cluster& cluster) {
  std::vector<Group>& group = cluster.make_group("late");
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    for (uint64_t k = 0; k < 5; ++k) {
      int64_t* in = registered(cluster, r, kCount);
      Values out(kCount * static_cast<size_t>(comm.spec().ranks)), mine = values(r, k, kCount);
      std::memcpy(in, mine.data(), kCount * sizeof(int64_t));
      if (r == 1) usleep(20'000);
      const RequestPtr request = gather(comm, in, out.data(), kCount);
      CHECK(comm.wait(*request, INT64_MAX, nullptr));
      succeeded(*request);
      std::memset(in, 0xEE, kCount * sizeof(int64_t));
      cluster.heap(r).release(in);
      for (int rank = 0; rank < comm.spec().ranks; ++rank)
        for (size_t i = 0; i < kCount; i += 7) CHECK_EQ(out[static_cast<size_t>(rank) * kCount + i], value(rank, k, i));
    }
  });
}

#if !defined(__SANITIZE_THREAD__)
// The page whose first reader stops in the midst of reading until it may go on.
std::atomic<char*> page{nullptr};
std::atomic<bool> reading{false}, may_go_on{false};

void at_the_page(int, siginfo_t* info, void*) {
  char* const stop = page.exchange(nullptr);
  if (stop == nullptr || static_cast<char*>(info->si_addr) < stop || static_cast<char*>(info->si_addr) >= stop + 4096)
    std::_Exit(139);
  mprotect(stop, 4096, PROT_READ | PROT_WRITE);
  reading = true;
  while (!may_go_on) continue;
}

// Rank 1 is in the midst of reading what rank 0 has lent it when rank 0 gives up and writes there. Rank 1 goes on, reads that and is through
// with its program: its call must not end well. Under ThreadSanitizer that writing would be a race, as it is meant.
void given_up(const char* how) {
  constexpr size_t kValues = 8192 / sizeof(int64_t);  // one piece
  Cluster cluster({2, 1, 1, 0, size_t{64} << 20, size_t{1} << 20});
  std::vector<Group>& group = cluster.make_group(how);
  int64_t* in = registered(cluster, 0, kValues);
  std::memset(in, 0, 8192);
  std::atomic<bool> lent{false};
  reading = may_go_on = false;
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    Values out(2 * kValues), own(kValues);
    if (r == 1) await("what is lent", [&] { return lent.load(); });
    const RequestPtr request = gather(comm, r == 0 ? in : own.data(), out.data(), kValues);
    if (r == 1) {
      CHECK(comm.wait(*request, INT64_MAX, nullptr));
      CHECK(out[kValues - 1] != 0);  // it did read what was written later
      CHECK(request->error() != nullptr);
      CHECK(request->error()->cause == Cause::aborted);
      return;
    }
    while (!request->lends.load()) comm.advance();
    page = reinterpret_cast<char*>(in) + 4096;
    CHECK(mprotect(page.load(), 4096, PROT_NONE) == 0);
    lent = true;
    await("rank 1 in the midst of it", [&] { return comm.advance(), reading.load(); });
    if (std::strcmp(how, "abort") == 0)
      comm.abort("the test");
    else
      comm.leave(0, false);
    std::memset(in, 0xEE, 8192);
    may_go_on = true;
  });
}
#endif

// A reader that never comes: the deadline passes, and it is named.
void reader_never_comes(Cluster& cluster) {
  std::vector<Group>& group = cluster.make_group("never");
  cluster.each_rank([&](int r) {
    if (r == 1) return;
    Values out(2 * kCount);
    int64_t* in = registered(cluster, r, kCount);
    const RequestPtr request = gather(*group[r].comm, in, out.data(), kCount, now_ns() + kSecond / 2);
    const Error e = failure(*group[r].comm, *request);
    CHECK(e.cause == Cause::timeout);
    CHECK_EQ(e.rank, 1);
  });
}

}  // namespace

int main() {
  start("engine_lending_test", 240);
  for (const int64_t spin_ns : {int64_t{0}, int64_t{20'000}}) {
    Cluster cluster({2, 1, 2, spin_ns, size_t{256} << 20, size_t{256} << 20});
    section("all_reduce in place");
    reduce_in_place(cluster);
    section("freed when done");
    freed_when_done(cluster);
    section("a reader that never comes");
    reader_never_comes(cluster);
  }
#if !defined(__SANITIZE_THREAD__)
  section("given up");
  struct sigaction action = {};
  action.sa_sigaction = at_the_page;
  action.sa_flags = SA_SIGINFO;
  CHECK(sigaction(SIGSEGV, &action, nullptr) == 0);
  given_up("abort");
  given_up("leave");
#endif
  return 0;
}
