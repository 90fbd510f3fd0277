// Registered memory: what is given out is real, apart and on pages; what is freed is used again or goes back to the system; running out is an error.
#include "connections/heap.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include <map>
#include <vector>

#include "check.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::shared_ptr<Heap> make(size_t limit) {
  Error error;
  auto heap = Heap::create(limit, error);
  if (!heap) fail("a heap", 0, error.text);
  return heap;
}

char* take(Heap& heap, size_t bytes) {
  Error error;
  char* data = heap.allocate(bytes, error);
  if (data == nullptr) fail("memory", 0, error.text);
  return data;
}

Error refused(Heap& heap, size_t bytes) {
  Error error;
  CHECK(heap.allocate(bytes, error) == nullptr);
  CHECK(error.cause == Cause::no_memory);
  return error;
}

// Bytes that have pages, in whatever process.
size_t resident(const Heap& heap) {
  struct stat st;
  CHECK(fstat(heap.segment()->fd(), &st) == 0);
  return static_cast<size_t>(st.st_blocks) * 512;
}

// Against a list of all free bytes, a million of them: best fit, cut, melted with both neighbours.
void ranges() {
  Ranges free;
  free.add(0, 1000);
  std::map<size_t, size_t> used;
  Random random(1);
  size_t have = 1000;
  for (int i = 0; i < 20'000; ++i) {
    if (random.one_in(2) || used.empty()) {
      const size_t bytes = 1 + random.below(40);
      size_t at;
      if (!free.take(bytes, at)) {
        CHECK(free.largest() < bytes);
        continue;
      }
      const auto next = used.lower_bound(at);
      CHECK(next == used.end() || at + bytes <= next->first);
      CHECK(next == used.begin() || std::prev(next)->first + std::prev(next)->second <= at);
      CHECK(at + bytes <= 1000);
      used[at] = bytes, have -= bytes;
    } else {
      auto it = used.begin();
      std::advance(it, static_cast<long>(random.below(used.size())));
      const Ranges::Range all = free.add(it->first, it->second);
      CHECK(all.offset <= it->first && all.offset + all.bytes >= it->first + it->second);
      have += it->second;
      used.erase(it);
    }
    CHECK_EQ(free.total(), have);
  }
  for (const auto& [at, bytes] : used) free.add(at, bytes);
  CHECK_EQ(free.largest(), size_t{1000});
  CHECK_EQ(free.first().bytes, size_t{1000});
}

void idle_costs_nothing() {
  constexpr size_t kLarge = size_t{1} << 34;  // an emulated processor gets no terabyte of address space
  auto heap = make(kLarge);
  CHECK_EQ(resident(*heap), size_t{0});
  CHECK_EQ(heap->used(), size_t{0});
  CHECK_EQ(heap->segment()->size(), kLarge);
}

void given_out() {
  auto heap = make(64 * kMiB);
  char* small = take(*heap, 1);
  char* large = take(*heap, 3 * kMiB + 5);
  for (char* data : {small, large}) {
    CHECK_EQ(reinterpret_cast<uintptr_t>(data) % Heap::kAlign, uintptr_t{0});
    CHECK(heap->contains(data));
  }
  CHECK(large + 3 * kMiB + 5 <= small || small + 1 <= large);
  fill(large, 3 * kMiB + 5, 1, 1);
  *small = 7;
  CHECK(holds(large, 3 * kMiB + 5, 1, 1));
  CHECK_EQ(heap->used(), 4096 + 3 * kMiB + 4096);
  CHECK_EQ(resident(*heap), heap->used());
  int local;
  CHECK(!heap->contains(&local));
  heap->release(&small[1]);  // not the start of anything: nothing happens
  CHECK_EQ(heap->used(), 4096 + 3 * kMiB + 4096);
}

void used_again() {
  auto heap = make(1024 * kMiB);
  char* first = take(*heap, 2 * kMiB);
  fill(first, 2 * kMiB, 1, 1);
  heap->release(first);
  CHECK_EQ(heap->kept(), 2 * kMiB);
  CHECK(take(*heap, kMiB) == first);  // the pages are there already
  CHECK_EQ(heap->kept(), kMiB);
  heap->release(first);
  // Past what is kept the pages go back.
  char* huge = take(*heap, 2 * Heap::kKeep);
  CHECK_EQ(resident(*heap), 2 * Heap::kKeep + 2 * kMiB);
  heap->release(huge);
  CHECK_EQ(heap->used(), size_t{0});
  CHECK(resident(*heap) <= Heap::kKeep);
  CHECK_EQ(resident(*heap), heap->kept());
}

void runs_out() {
  auto heap = make(8 * kMiB);
  char* a = take(*heap, 3 * kMiB);
  char* b = take(*heap, 3 * kMiB);
  const Error e = refused(*heap, 3 * kMiB);
  for (const char* part : {"3145728", "8388608", "6291456", "memory.registered"}) CHECK_CONTAINS(e.text, part);
  CHECK_CONTAINS(refused(*heap, size_t{1} << 50).text, "memory.registered");
  heap->release(b);
  char* c = take(*heap, 5 * kMiB);  // joins what is kept to what was never used
  heap->release(a);
  heap->release(c);
  CHECK(take(*heap, 8 * kMiB) != nullptr);
  CHECK_CONTAINS(refused(*make(0), 1).text, "memory.registered");
}

// A hole between what is in use is no room, and the error says so.
void fragments() {
  auto heap = make(4 * kMiB);
  std::vector<char*> all;
  for (int i = 0; i < 4; ++i) all.push_back(take(*heap, kMiB));
  heap->release(all[0]);
  heap->release(all[2]);
  CHECK_CONTAINS(refused(*heap, 2 * kMiB).text, "no part of it is large enough");
  heap->release(all[1]);
  CHECK(take(*heap, 3 * kMiB) == all[0]);
}

// The contents are nobody else's, whatever other threads take and free.
void threads() {
  auto heap = make(256 * kMiB);
  std::vector<std::thread> all;
  for (uint64_t t = 0; t < 4; ++t)
    all.emplace_back([&, t] {
      Random random(t);
      std::vector<std::pair<char*, size_t>> mine;
      for (uint64_t k = 0; k < 300; ++k) {
        const size_t bytes = 1 + random.below(200'000);
        mine.emplace_back(take(*heap, bytes), bytes);
        fill(mine.back().first, bytes, t, bytes);
        if (mine.size() < 8) continue;
        const auto [data, size] = mine[k % 8];
        CHECK(holds(data, size, t, size));
        heap->release(data);
        mine.erase(mine.begin() + static_cast<long>(k % 8));
      }
      for (auto [data, size] : mine) heap->release(data);
    });
  for (std::thread& t : all) t.join();
  CHECK_EQ(heap->used(), size_t{0});
}

// A child sees what it inherited and shares it with its parent; it cannot take or free there.
void forked() {
  auto heap = make(8 * kMiB);
  char* data = take(*heap, 5000);
  fill(data, 5000, 1, 1);
  const pid_t child = fork();
  if (child == 0) {
    Error error;
    bool good = holds(data, 5000, 1, 1) && heap->allocate(1, error) == nullptr && error.cause == Cause::internal;
    heap->release(data);
    data[0] = 99;
    std::_Exit(good ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_EQ(status, 0);
  CHECK_EQ(static_cast<int>(data[0]), 99);
  CHECK_EQ(heap->used(), size_t{8192});
}

}  // namespace

int main() {
  start("heap_test", 120);
  section("ranges");
  ranges();
  section("idle");
  idle_costs_nothing();
  section("given out");
  given_out();
  section("used again");
  used_again();
  section("runs out");
  runs_out();
  section("fragments");
  fragments();
  section("threads");
  threads();
  section("fork");
  forked();
  return 0;
}
