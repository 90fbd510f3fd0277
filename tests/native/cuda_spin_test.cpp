// What a kernel in `spin` mode leaves on the host when it gives up: cause, peer and step as an Error, the first one for good. And lists of chunks: used again when their call is done, not while it runs, never in a graph.
#include "cuda/spin_failure.h"
#include "fake_group.h"

using namespace ringcomm;
using namespace ringcomm::cuda;
using namespace ringcomm::test;

namespace {

bool failed(GroupRank& rank, Error& error) {
  await("the kernel's end", [&] {
    bool done = false;
    CHECK(rank.runtime->done(*rank.stream, done, error));
    return done;
  });
  return rank.group->look(error);
}

void timeouts() {
  section("a rank that does not come in time: who, where, for whom; what comes behind does not write over it");
  in_threads({DeviceMode::spin, 2}, [](GroupRank& rank) {
    const auto message = rank.message({Pattern::ring, DType::int32, ReduceOp::sum, 40});
    const auto behind = rank.message({Pattern::broadcast, DType::int32, ReduceOp::sum, 40});
    if (rank.rank == 0) {
      message->call.timeout_ns = behind->call.timeout_ns = 20'000'000;
      rank.enqueue(*message), rank.enqueue(*behind);
      Error error;
      CHECK(failed(rank, error));
      // Step 0 sends, step 1 waits for what rank 1 sends in its own.
      CHECK_EQ(std::string(error.text),
               "the kernel of rank 0 was waiting for data from rank 1 in step 1 when its time was over");
      CHECK(error.cause == Cause::timeout);
      CHECK(error.rank == 1 && error.peer == 1 && error.reporter == 0 && error.step == 1);
      CHECK(rank.group->end(*rank.stream, after_ms(30'000), error));
      CHECK(rank.group->look(error) && error.cause == Cause::timeout);
    }
    rank.meet();
  });
}

void another_call() {
  section("a slot of another call");
  for (bool low : {false, true})
    in_threads({DeviceMode::spin, 2}, [=](GroupRank& rank) {
      const auto message = rank.message({Pattern::one_shot, DType::int32, ReduceOp::sum, 40});
      message->call.tag = rank.rank == 0 ? 5 : 77, message->call.low_latency = low;
      rank.enqueue(*message);
      Error error;
      CHECK(failed(rank, error));
      const std::string tag = rank.rank == 0 ? "77" : "5", peer = rank.rank == 0 ? "1" : "0";
      CHECK_EQ(std::string(error.text), "the kernel of rank " + std::to_string(rank.rank) +
                                            " found a slot of another call (tag " + tag + ") from rank " + peer +
                                            " in step 1");
      CHECK(error.cause == Cause::mismatch && error.rank == 1 - rank.rank);
      rank.meet();
    });
}

void aborts() {
  section("an abort names whom the kernel waited for, and blames nobody; rank 1 has no room for a third slot");
  in_threads({DeviceMode::spin, 2, 1, 64}, [](GroupRank& rank) {
    const auto message = rank.message({Pattern::broadcast, DType::int32, ReduceOp::sum, 400});
    if (rank.rank == 1) {  // the root
      rank.enqueue(*message);
      Error error;
      CHECK(!rank.runtime->drain(*rank.stream, after_ms(20), error));
      CHECK(rank.group->end(*rank.stream, after_ms(30'000), error));
      CHECK(rank.group->look(error));
      CHECK_EQ(std::string(error.text),
               "the kernel of rank 1 was waiting for room at rank 0 in step 1 when it was told to end");
      CHECK(error.cause == Cause::aborted);
      CHECK_EQ(error.rank, -1);
      CHECK_EQ(error.peer, 0);
    }
    rank.meet();
  });
}

void records() {
  section("of several blocks the one that says most");
  const auto word = [](FailureCause cause, uint64_t peer, uint64_t step) {
    return step << kFailureStep | peer << kFailurePeer | static_cast<uint64_t>(cause);
  };
  Failure f[4] = {};
  Error error;
  CHECK(!failure_of(f, 4, 7, error));
  f[1].word = word(FailureCause::aborted, 3, 9);
  CHECK(failure_of(f, 4, 7, error) && error.cause == Cause::aborted && error.peer == 3 && error.step == 9);
  CHECK(!failure_of(f, 1, 7, error));
  f[3].word = word(FailureCause::timeout, 70'000, 100'000);
  CHECK(failure_of(f, 4, 7, error) && error.cause == Cause::timeout && error.peer == 70'000 && error.step == 100'000);
  f[0] = {word(FailureCause::foreign_tag, 2, 1), 0xfffffff0};
  CHECK(failure_of(f, 4, 7, error) && error.cause == Cause::mismatch && error.rank == 2);
  CHECK_CONTAINS(std::string(error.text), "(tag 4294967280)");
}

void lists() {
  section("lists are used again when their call is done, and never when a graph has them");
  fake_cuda_reset();
  {
    Error error;
    const auto runtime = DriverRuntime::open(fake_cuda(), 0, error);
    const DeviceStream stream = device_stream(*runtime, error);
    const PinnedMemory flag = pinned_memory(*runtime, 64, error);
    SpinLists lists(*runtime);
    CHECK(lists.add(2, 4, error));
    const auto use = [&] {
      SpinLists::List* const list = lists.take(4, error);
      CHECK(list != nullptr && lists.used(*list, *stream, error));
      return list;
    };
    CHECK(runtime->wait_flag(reinterpret_cast<uint32_t*>(flag->device), 1, *stream, error));
    SpinLists::List* const first = use();
    SpinLists::List* const second = use();
    CHECK(first != second);
    CHECK_EQ(lists.size(), 2u);
    SpinLists::List* const third = use();  // the stream still waits
    CHECK(third != first && third != second);
    CHECK_EQ(lists.size(), 3u);
    __atomic_store_n(reinterpret_cast<uint32_t*>(flag->host), 1u, __ATOMIC_RELEASE);
    CHECK(runtime->drain(*stream, after_ms(30'000), error));
    CHECK(use() == first);
    CHECK(lists.take(5, error)->capacity >= 5);  // too long for those
    CHECK_EQ(lists.size(), 4u);
    CHECK(runtime->drain(*stream, after_ms(30'000), error));
    fake_cuda_capture(*stream, true);
    CHECK(use() == first);
    fake_cuda_capture(*stream, false);
    CHECK(runtime->drain(*stream, after_ms(30'000), error));
    for (int k = 0; k < 5; ++k) CHECK(use() != first);
  }
  nothing_left();
}

}  // namespace

int main() {
  start("cuda_spin_test", 240);
  records();
  lists();
  timeouts();
  another_call();
  aborts();
  return 0;
}
