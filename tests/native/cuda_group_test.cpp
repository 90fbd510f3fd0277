// DeviceGroup in both modes over the fake driver, ranks as processes and as threads: results of random calls of every pattern, replays of captured ones, the end of calls that a rank does not come to, what is
// refused, and that every failing call of the driver is an error with its name that leaves nothing.
#include "fake_group.h"

using namespace ringcomm;
using namespace ringcomm::cuda;
using namespace ringcomm::test;

namespace {

// The same calls on all ranks; none is waited for before the last.
void random_calls(GroupRank& rank, int calls, uint64_t seed) {
  Random random(seed);
  std::vector<std::unique_ptr<GroupMessage>> all;
  for (int k = 0; k < calls; ++k) {
    all.push_back(rank.message(random_kind(random, 400)));
    DeviceCall& call = all.back()->call;
    call.tag = static_cast<uint32_t>(k + 1);
    call.low_latency = random.one_in(2), call.blocks = 1 + static_cast<int>(random.below(2));
    if (call.blocks == 1) call.piece = std::max<size_t>(call.piece / 2, 1);
    rank.enqueue(*all.back());
  }
  rank.drain();
  for (const auto& message : all) message->check();
}

void results() {
  section("random calls of all patterns, ranks as processes");  // first: a process with a driver forks none
  for (DeviceMode mode : {DeviceMode::spin, DeviceMode::memop})
    for (int ranks : {2, 3}) in_processes({mode, ranks}, [](GroupRank& rank) { random_calls(rank, 24, 1); });
  section("ranks as threads of one process");
  for (DeviceMode mode : {DeviceMode::spin, DeviceMode::memop})
    for (int ranks : {1, 2, 4})
      in_threads({mode, ranks}, [&](GroupRank& rank) { random_calls(rank, 24, static_cast<uint64_t>(ranks)); });
}

void replays() {
  section("captured calls are replayed with new inputs, between others; one of lists of chunks too");
  for (DeviceMode mode : {DeviceMode::spin, DeviceMode::memop})
    in_threads({mode, 3}, [](GroupRank& rank) {
      std::vector<std::unique_ptr<GroupMessage>> captured;
      for (Pattern p : {Pattern::lagging_ring, Pattern::all_gather, Pattern::all_to_all})
        captured.push_back(rank.message({p, DType::float32, ReduceOp::sum, 333, p != Pattern::all_gather}));
      fake_cuda_capture(*rank.stream, true);
      for (const auto& message : captured) rank.enqueue(*message);
      fake_cuda_capture(*rank.stream, false);
      std::vector<std::unique_ptr<GroupMessage>> kept;  // memory is given back when nobody waits for anybody
      for (int replay = 1; replay < 5; ++replay) {
        kept.push_back(rank.message({Pattern::all_to_all, DType::int32, ReduceOp::sum, 50, true, replay}));
        const auto& between = kept.back();
        for (const auto& message : captured) message->fill_in(replay);
        rank.enqueue(*between);
        fake_cuda_replay(*rank.stream);
        rank.drain();
        between->check();
        for (const auto& message : captured) message->check();
      }
    });
}

void absent_rank() {
  section("a rank that never comes: streams are drained, and the group takes no more calls");
  for (DeviceMode mode : {DeviceMode::spin, DeviceMode::memop})
    for (Pattern pattern : {Pattern::ring, Pattern::one_shot})
      in_threads({mode, 3}, [=](GroupRank& rank) {
        // Waits that are ended in memop mode order nothing any more: more messages than slots would be a race, and are, harmless on a device.
        const size_t count = mode == DeviceMode::spin ? 2000 : 100;
        const auto message = rank.message({pattern, DType::float32, ReduceOp::sum, count});
        const auto behind = rank.message({Pattern::all_gather, DType::float32, ReduceOp::sum, 100});
        if (rank.rank != 2) rank.enqueue(*message);
        if (rank.rank != 2 && mode == DeviceMode::spin) rank.enqueue(*behind);
        Error error;
        if (rank.rank != 2) {
          CHECK(!rank.runtime->drain(*rank.stream, after_ms(20), error));
          CHECK(!rank.group->look(error));
          CHECK(rank.group->end(*rank.stream, after_ms(30'000), error));
          CHECK(!rank.group->enqueue(message->call, *rank.stream, error));
          CHECK_EQ(std::string(error.text), std::string("this group has been ended"));
          CHECK(error.cause == Cause::aborted);
        }
        CHECK_EQ(rank.group->look(error), rank.rank != 2 && mode == DeviceMode::spin);
        rank.meet();
      });
}

void cards() {
  section("cards of ranks that do not fit together");
  for (DeviceMode mode : {DeviceMode::spin, DeviceMode::memop})
    in_threads({mode, 2}, [=](GroupRank& rank) {
      Error error;
      const DeviceCard own = rank.group->card();
      DeviceCard other = own;
      other.rank = 1 - own.rank;
      const auto refused = [&](std::vector<DeviceCard> all, const std::string& text) {
        if (all.size() == 2 && own.rank == 1) std::swap(all[0], all[1]);
        CHECK(!rank.group->connect(all, {nullptr, nullptr}, error));
        CHECK_CONTAINS(std::string(error.text), text);
      };
      refused({own}, "1 cards of 2 ranks");
      refused({own, own}, "is of rank " + std::to_string(own.rank));
      other.layout ^= 1;
      const std::string its = "rank " + std::to_string(other.rank);
      refused({own, other}, "the memory of " + its + " is laid out otherwise");
      CHECK_EQ(error.rank, other.rank);
      CHECK(error.cause == Cause::mismatch);
      other.layout ^= 1;
      other.mode = mode == DeviceMode::spin ? DeviceMode::memop : DeviceMode::spin;
      refused({own, other},
              its + " is in " + name(other.mode) + " mode, rank " + std::to_string(own.rank) + " in " + name(mode));
    });
}

void refusals() {
  section("programs and calls that do not fit");
  for (DeviceMode mode : {DeviceMode::spin, DeviceMode::memop})
    in_threads({mode, 2}, [=](GroupRank& rank) {
      Error error;
      const auto refused = [&](const DeviceCall& call, const std::string& text) {
        CHECK(!rank.group->enqueue(call, *rank.stream, error));
        CHECK_CONTAINS(std::string(error.text), text);
      };
      CHECK_EQ(rank.group->load({1, 2, 3}, error), -1);
      CHECK_EQ(rank.group->load(one_shot(3, rank.rank), error), -1);
      CHECK_CONTAINS(std::string(error.text), "the program is for 3 ranks");
      const auto message = rank.message({Pattern::ring, DType::float32, ReduceOp::sum, 100});
      CHECK_EQ(rank.group->load(ring(2, rank.rank, 0), error), message->call.program);
      CHECK(rank.group->load(one_shot(2, rank.rank), error) != message->call.program);
      DeviceCall call = message->call;
      call.program = 77;
      refused(call, "no program 77 was loaded");
      call = message->call, call.in.pop_back();
      refused(call, "the call's chunks are not those of the program");
      call = message->call, call.piece = rank.spec.slot / 4 + 1;
      refused(call, "pieces have 516 bytes, slots 512");
      call.piece = 0;
      refused(call, "pieces have 0 bytes");
      rank.enqueue(*message);
      rank.drain();
      message->check();
    });
}

// One rank alone, so that nobody else waits for what fails.
void every_failure() {
  section("each call of the driver fails once: an error that names it, and nothing is left");
  int failures = 0;
  for (DeviceMode mode : {DeviceMode::spin, DeviceMode::memop})
    for (const char* call : {"cuMemAlloc_v2", "cuMemHostAlloc", "cuMemHostGetDevicePointer_v2", "cuIpcGetMemHandle",
                             "cuMemcpyAsync", "cuStreamCreate", "cuEventCreate", "cuEventRecord", "cuLaunchKernel",
                             "cuStreamIsCapturing", "cuMemGetAddressRange_v2", "cuMemsetD8Async"})
      for (int nth = 1, failed = 1; failed; ++nth) {
        fake_cuda_reset();
        failed = 0;
        {
          Error error;
          const auto runtime = DriverRuntime::open(fake_cuda(), 0, error);
          CHECK(runtime && runtime->load_kernels(fake_cuda_image(), kernel_names(), error));
          const DeviceStream stream = device_stream(*runtime, error);
          const PinnedMemory memory = pinned_memory(*runtime, 64, error);
          CHECK(stream && memory);
          fake_cuda_fail(call, nth, cu::kOutOfMemory);
          const auto run = [&]() -> bool {
            std::unique_ptr<DeviceGroup> group;
            if (mode == DeviceMode::spin)
              group = SpinGroup::make(*runtime, {{1, 1, 4, 64, 64}, 1}, 0, error);
            else
              group = MemopGroup::make(*runtime, {1, 4, 64, 64}, 0, error);
            if (!group || !group->connect({group->card()}, {nullptr}, error)) return false;
            DeviceCall c;
            Table t(Collective::all_reduce, 1, 0, 2, 2);
            c.program = group->load(t.copy(in(0), out(0)).copy(in(1), out(1)).pack(), error);
            if (c.program < 0) return false;
            c.in = {{memory->device, 8}, {memory->device + 16, 8}};  // not one range
            c.out = {{memory->device + 32, 8}, {memory->device + 40, 8}};
            c.piece = 8;
            if (!group->enqueue(c, *stream, error)) return false;
            return runtime->drain(*stream, after_ms(30'000), error);
          };
          if (!run()) {
            failed = 1, ++failures;
            CHECK_CONTAINS(std::string(error.text), "(2): out of memory");
            CHECK_CONTAINS(std::string(call), std::string(error.text).substr(0, std::string(error.text).find(' ')));
            CHECK(runtime->drain(*stream, after_ms(30'000), error));
          }
        }
        nothing_left();
        CHECK(nth < 30);
      }
  CHECK_EQ(failures, 33 + 6);  // of spin: 16 of them events for lists; of memop
}

}  // namespace

int main() {
  start("cuda_group_test", 280);
  results();
  replays();
  absent_rank();
  cards();
  refusals();
  every_failure();
  return 0;
}
