// Which mode ranks run in, from their gathered facts: every obstacle, every wish, the same for every rank; the facts of a runtime.
#include "check.h"
#include "cuda/device_mode.h"
#include "cuda/driver_runtime.h"
#include "fake_cuda.h"

using namespace ringcomm;
using namespace ringcomm::cuda;
using namespace ringcomm::test;

namespace {

constexpr auto kAny = std::nullopt;

// Rank r on machine "m", in a process of its own, on this GPU.
std::vector<RankDevice> on(const std::vector<std::string>& gpus) {
  std::vector<RankDevice> all;
  for (const std::string& gpu : gpus) all.push_back({"m", "p" + std::to_string(all.size()), "GPU-" + gpu, false, {}});
  return all;
}

void is(const ModeChoice& choice, DeviceMode mode, const std::string& reason) {
  CHECK(choice.mode.has_value());
  CHECK_EQ(name(*choice.mode), std::string(name(mode)));
  CHECK_EQ(choice.reason, reason);
}
void is_none(const std::vector<RankDevice>& ranks, const std::string& reason) {
  for (const std::optional<DeviceMode> wish : {std::optional<DeviceMode>(), {DeviceMode::spin}, {DeviceMode::memop}}) {
    const ModeChoice choice = choose_mode(ranks, wish);
    CHECK(!choice.mode.has_value());
    CHECK_EQ(choice.reason, reason);
  }
}

void choices() {
  section("GPUs of their own: spin; a shared one: memop; whatever is asked for");
  is(choose_mode(on({"a"}), kAny), DeviceMode::spin, "every rank has a GPU of its own");
  is(choose_mode(on({"a", "b", "c"}), kAny), DeviceMode::spin, "every rank has a GPU of its own");
  is(choose_mode(on({"a", "b", "a"}), kAny), DeviceMode::memop, "ranks 0 and 2 share GPU-a");
  is(choose_mode(on({"a", "b", "b", "a"}), kAny), DeviceMode::memop, "ranks 0 and 3 share GPU-a");
  is(choose_mode(on({"a", "b"}), DeviceMode::memop), DeviceMode::memop,
     "asked for memop; every rank has a GPU of its own");
  is(choose_mode(on({"a", "b"}), DeviceMode::spin), DeviceMode::spin,
     "asked for spin; every rank has a GPU of its own");
  is(choose_mode(on({"a", "a"}), DeviceMode::memop), DeviceMode::memop, "asked for memop; ranks 0 and 1 share GPU-a");
  is(choose_mode(on({"a", "a"}), DeviceMode::spin), DeviceMode::spin,
     "asked for spin; ranks 0 and 1 share GPU-a: without MPS their kernels do not run at the same time, and each step "
     "waits for time slices");
  std::vector<RankDevice> threads = on({"a", "a"});
  threads[1].process = threads[0].process;
  is(choose_mode(threads, DeviceMode::spin), DeviceMode::spin,
     "asked for spin; ranks 0 and 1 share GPU-a: all their blocks must fit it at once");
  is(choose_mode(threads, kAny), DeviceMode::memop, "ranks 0 and 1 share GPU-a");
}

void obstacles() {
  section("ranks that cannot reach each other's memory");
  std::vector<RankDevice> ranks = on({"a", "b", "c"});
  ranks[2].host = "n";
  is_none(ranks, "ranks 0 and 2 are on different machines (m, n)");
  ranks = on({"a", "b", "c"});
  ranks[2].unreachable = {"GPU-x", "GPU-b"};
  is_none(ranks, "GPU-c of rank 2 cannot reach the memory of GPU-b of rank 1");
  ranks = on({"a", "b"});
  ranks[0].unreachable = {"GPU-b"};
  is_none(ranks, "GPU-a of rank 0 cannot reach the memory of GPU-b of rank 1");
  ranks[0].unreachable = {"GPU-z"};  // nobody's here
  is(choose_mode(ranks, kAny), DeviceMode::spin, "every rank has a GPU of its own");
  ranks = on({"a", "b"});
  ranks[1].process = ranks[0].process;
  is_none(ranks, "ranks 0 and 1 are on two devices of one process (GPU-a, GPU-b): use one process for each");
  ranks = on({"a", "a"});
  ranks[1].one_process = true;
  is_none(ranks, "ranks 0 and 1 are two processes on GPU-a, which is in exclusive mode");
  ranks[1].process = ranks[0].process;
  is(choose_mode(ranks, kAny), DeviceMode::memop, "ranks 0 and 1 share GPU-a");
}

RankDevice facts_of(const FakeMachine& machine) {
  fake_cuda_reset(machine);
  Error error;
  const auto runtime = DriverRuntime::open(fake_cuda(), 0, error);
  RankDevice facts;
  CHECK(runtime && rank_device(*runtime, "m", facts, error));
  fake_cuda_fail("cuDeviceCanAccessPeer", 1, cu::kInvalidValue);
  RankDevice none;
  CHECK(machine.devices == 1 || !rank_device(*runtime, "m", none, error));
  return facts;
}

void facts() {
  section("the facts of a runtime");
  const std::string gpu = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa0";
  RankDevice facts = facts_of({.devices = 3, .peer_access = false, .compute_mode = cu::kComputeModeExclusiveProcess});
  CHECK_EQ(facts.uuid, gpu + "0");
  CHECK_EQ(facts.process.size(), 32u);
  CHECK(facts.one_process);
  CHECK(facts.unreachable == (std::vector<std::string>{gpu + "1", gpu + "2"}));
  const std::string process = facts.process;
  facts = facts_of({.devices = 3});
  CHECK(facts.unreachable.empty() && !facts.one_process && facts.process == process);
  CHECK(facts_of({.devices = 1, .peer_access = false}).unreachable.empty());
}

}  // namespace

int main() {
  start("cuda_mode_test", 60);
  choices();
  obstacles();
  facts();
  CHECK_EQ(fake_cuda_misuse(), std::string());
  CHECK(fake_cuda_live().none());
  return 0;
}
