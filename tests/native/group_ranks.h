// Ranks of a DeviceGroup over some driver, each a thread or a process with a runtime and a stream of its own. What they tell each other by hand goes through one shared page.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <functional>
#include <thread>

#include "cuda/driver_runtime.h"
#include "cuda/memop_group.h"
#include "cuda/spin_group.h"
#include "cuda_shared.h"
#include "group_message.h"

namespace ringcomm::test {

inline constexpr int kMostRanks = 4;
inline constexpr size_t kFlagRoom = 64 << 10;  // of each rank

// Shared by all ranks: their cards, and how many have come so far.
struct GroupPage {
  cuda::DeviceCard cards[kMostRanks];
  uint32_t arrived, numbers[kMostRanks];
};

// A driver, opened where it is first used, and a module with the kernels.
struct Machine {
  std::function<const cuda::Driver&()> driver;
  const void* image;
};

struct GroupSpec {
  cuda::DeviceMode mode = cuda::DeviceMode::spin;
  int ranks = 2;
  int blocks = 2;
  size_t slot = 512;
  unsigned threads = 2;
};

// One rank: opened, connected, and closed together with the others.
class GroupRank {
 public:
  GroupRank(const Machine& machine, const GroupSpec& spec, int rank, GroupPage& page, char* flags)
      : spec(spec), rank(rank), page_(page) {
    Error error;
    runtime = cuda::DriverRuntime::open(machine.driver(), 0, error);
    good(runtime && runtime->load_kernels(machine.image, cuda::kernel_names(), error), error);
    stream = cuda::device_stream(*runtime, error);
    group = make(error);
    good(stream && group, error);
    page.cards[rank] = group->card();
    meet();
    std::vector<cuda::DeviceCard> cards(page.cards, page.cards + spec.ranks);
    std::vector<char*> pages;
    CHECK(group->flag_bytes() <= kFlagRoom);
    // Mapped once more: a process registers an address once, and ranks may be threads of one.
    view_ = static_cast<char*>(mremap(flags, 0, kMostRanks * kFlagRoom, MREMAP_MAYMOVE));
    CHECK(view_ != MAP_FAILED);
    for (int r = 0; r < spec.ranks; ++r) pages.push_back(view_ + static_cast<size_t>(r) * kFlagRoom);
    good(group->connect(cards, pages, error), error);
    meet();
  }
  // As the contract says: streams done, peers' memory closed, all have met, own memory freed.
  ~GroupRank() {
    group->disconnect();
    meet();
    munmap(view_, kMostRanks * kFlagRoom);
  }
  void meet() {
    const uint32_t all = static_cast<uint32_t>(spec.ranks) * ++meetings_;
    __atomic_fetch_add(&page_.arrived, 1u, __ATOMIC_ACQ_REL);
    await("the other ranks", [&] { return __atomic_load_n(&page_.arrived, __ATOMIC_ACQUIRE) >= all; });
  }
  void good(bool is, const Error& error) const {
    if (!is) fail(__FILE__, __LINE__, error.text);
  }
  std::unique_ptr<GroupMessage> message(const MessageKind& kind) {
    auto made = std::make_unique<GroupMessage>(*runtime, *group, spec.ranks, rank, kind);
    made->call.piece = std::max<size_t>(spec.slot / 4 / made->call.kernel.element, 1);
    return made;
  }
  void enqueue(GroupMessage& message) {
    Error error;
    good(message.send(*runtime, *stream, error) && group->enqueue(message.call, *stream, error) &&
             message.fetch(*runtime, *stream, error),
         error);
  }
  void drain() {
    Error error;
    good(runtime->drain(*stream, after_ms(60'000), error), error);
    if (group->look(error)) fail(__FILE__, __LINE__, error.text);
  }

  const GroupSpec spec;
  const int rank;
  std::unique_ptr<cuda::DriverRuntime> runtime;
  cuda::DeviceStream stream;
  std::unique_ptr<cuda::DeviceGroup> group;

 private:
  std::unique_ptr<cuda::DeviceGroup> make(Error& error) {
    if (spec.mode == cuda::DeviceMode::spin)
      return cuda::SpinGroup::make(*runtime, {{spec.ranks, spec.blocks, 4, spec.slot, spec.slot / 2}, spec.threads},
                                   rank, error);
    return cuda::MemopGroup::make(*runtime, {spec.ranks, 4, spec.slot, spec.slot}, rank, error);
  }
  GroupPage& page_;
  uint32_t meetings_ = 0;
  char* view_ = nullptr;
};

using RankBody = std::function<void(GroupRank&)>;

// One page, and behind it the flags of all ranks.
struct GroupPages {
  SharedPages pages{4096 + kMostRanks * kFlagRoom};
  GroupPage& page() const { return *reinterpret_cast<GroupPage*>(pages.at); }
  char* flags() const { return pages.at + 4096; }
};
static_assert(sizeof(GroupPage) <= 4096);

inline void in_threads(const Machine& machine, const GroupSpec& spec, const RankBody& body) {
  const GroupPages pages;
  std::vector<std::thread> threads;
  for (int r = 0; r < spec.ranks; ++r)
    threads.emplace_back([&, r] {
      GroupRank rank(machine, spec, r, pages.page(), pages.flags());
      body(rank);
    });
  for (std::thread& t : threads) t.join();
}

// While this process has no driver: none works in a forked child. `behind` is called in each when all is given back.
inline void in_processes(
    const Machine& machine, const GroupSpec& spec, const RankBody& body, const std::function<void()>& behind = [] {}) {
  const GroupPages pages;
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int r = 0; r < spec.ranks; ++r) {
    children.push_back(fork());
    CHECK(children.back() >= 0);
    if (children.back() > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120);
    {
      GroupRank rank(machine, spec, r, pages.page(), pages.flags());
      body(rank);
    }
    behind();
    std::fflush(nullptr);
    _exit(0);
  }
  for (pid_t child : children) {
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
}

}  // namespace ringcomm::test
