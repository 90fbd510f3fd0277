// Programs in `memop` mode over the fake driver: results, replays, the end of a wait for a rank that never comes, what it costs, what is refused.
#include "enqueued_group.h"
#include "process_pair.h"

using namespace ringcomm;
using namespace ringcomm::cuda;
using namespace ringcomm::test;

namespace {

using Messages = std::vector<std::unique_ptr<EnqueuedMessage>>;  // by rank

Messages messages(EnqueuedGroup& group, Pattern pattern, size_t count, size_t piece, int seed) {
  Messages all;
  for (int r = 0; r < group.ranks(); ++r)
    all.push_back(std::make_unique<EnqueuedMessage>(*group.runtime, pattern, group.ranks(), r, count, piece, seed));
  return all;
}

void calls_in_a_row() {
  section("calls in a row, enqueued rank by rank by one thread: every result is exact");
  Random random(5);
  for (int ranks = 1; ranks <= 4; ++ranks) {
    EnqueuedGroup group({.ranks = ranks, .slots = ranks == 3 ? 5 : 4, .pair = 256, .fan_out = 256});
    for (int round = 0; round < 3; ++round) {
      std::vector<Messages> calls;
      for (int k = 0; k < 8; ++k)
        calls.push_back(messages(group, static_cast<Pattern>(random.below(kPatterns)), 1 + random.below(700),
                                 1 + random.below(64), k));
      for (int r = 0; r < ranks; ++r)
        for (Messages& call : calls) group.enqueue(r, *call[static_cast<size_t>(r)]);
      group.drain();
      for (Messages& call : calls)
        for (auto& message : call) message->check();
    }
  }
}

void replays() {
  section("captured calls are replayed with new inputs, between others");
  EnqueuedGroup group({.ranks = 3, .slots = 4, .pair = 128, .fan_out = 128});
  std::vector<Messages> captured;
  for (Pattern p : {Pattern::lagging_ring, Pattern::all_gather, Pattern::one_shot})
    captured.push_back(messages(group, p, 333, 32, 1));
  for (int r = 0; r < 3; ++r) {
    cu::Stream* const stream = *group.streams[static_cast<size_t>(r)];
    fake_cuda_capture(stream, true);
    for (Messages& call : captured) group.enqueue(r, *call[static_cast<size_t>(r)]);
    fake_cuda_capture(stream, false);
  }
  for (int replay = 2; replay < 6; ++replay) {
    Messages between = messages(group, Pattern::all_to_all, 50, 20, replay);
    for (Messages& call : captured)
      for (auto& message : call) message->fill_in(replay);
    for (int r = 0; r < 3; ++r) {
      if (replay % 2) group.enqueue(r, *between[static_cast<size_t>(r)]);
      fake_cuda_replay(*group.streams[static_cast<size_t>(r)]);
    }
    group.drain();
    for (Messages& call : captured)
      for (auto& message : call) message->check();
  }
}

void absent_rank() {
  section("a rank that never comes: the others' streams are drained by stores into their own flags");
  EnqueuedGroup group({.ranks = 3, .slots = 4, .pair = 64, .fan_out = 64});
  std::vector<Messages> calls;
  for (Pattern p : {Pattern::ring, Pattern::one_shot, Pattern::all_to_all})
    calls.push_back(messages(group, p, 400, 16, 1));
  for (int r = 0; r < 2; ++r)
    for (Messages& call : calls) group.enqueue(r, *call[static_cast<size_t>(r)]);
  Error error;
  for (int r = 0; r < 2; ++r) CHECK(!group.runtime->drain(*group.streams[static_cast<size_t>(r)], after_ms(20), error));
  const int64_t until = after_ms(30'000);
  for (int r = 0; r < 2; ++r)
    for (error = {}; !group.runtime->drain(*group.streams[static_cast<size_t>(r)], now_ns(), error);) {
      CHECK(error.cause == Cause::timeout && now_ns() < until);
      Enqueuer::end_waits(group.layout, group.pages[static_cast<size_t>(r)]->at);
    }
}

void premultiplied() {
  section("inputs that count `factor` times; an average; a value that only moves is scaled too");
  for (Pattern pattern : {Pattern::one_shot, Pattern::ring}) {
    EnqueuedGroup group({.ranks = 2, .slots = 4, .pair = 64, .fan_out = 64});
    Error error;
    std::vector<PinnedMemory> memory;
    Messages all = messages(group, pattern, 40, 16, 0);
    for (int r = 0; r < 2; ++r) {
      EnqueuedCall& call = all[static_cast<size_t>(r)]->call();
      call.kernel = combine_name(Family::float32), call.op = ReduceOp::avg, call.premultiplied = true, call.factor = 3;
      memory.push_back(pinned_memory(*group.runtime, 8 * 40, error));
      auto* const words = reinterpret_cast<float*>(memory.back()->host);
      for (int i = 0; i < 40; ++i) words[i] = static_cast<float>(i + 100 * r);
      size_t at = 0;
      for (auto* chunks : {&call.in, &call.out})
        for (EnqueuedChunk& chunk : *chunks) chunk.data = memory.back()->device + at, at += 4 * chunk.count;
      group.enqueue(r, *all[static_cast<size_t>(r)]);
    }
    group.drain();
    for (const PinnedMemory& m : memory)
      for (int i = 0; i < 40; ++i)
        CHECK_EQ(reinterpret_cast<float*>(m->host)[40 + i], static_cast<float>(3 * (2 * i + 100) / 2));
  }
}

// Enqueuing calls of rank 0 for one message, up to what the slots hold.
int cost(EnqueuedGroup& group, Pattern pattern, size_t count) {
  const auto all_calls = [] {
    return fake_cuda_calls("cuStreamWaitValue32_v2") + fake_cuda_calls("cuStreamWriteValue32_v2") +
           fake_cuda_calls("cuMemcpyAsync") + fake_cuda_calls("cuLaunchKernel");
  };
  Messages call = messages(group, pattern, count, 1024, 1);
  const int before = all_calls();
  group.enqueue(0, *call[0]);
  const int cost = all_calls() - before;
  for (int r = 1; r < group.ranks(); ++r) group.enqueue(r, *call[static_cast<size_t>(r)]);
  group.drain();
  return cost;
}

void host_cost() {
  section("what the host enqueues depends on slots, not on bytes");
  EnqueuedGroup group({.ranks = 4, .slots = 4, .pair = 4096, .fan_out = 4096});
  for (Pattern p : {Pattern::one_shot, Pattern::ring, Pattern::all_gather, Pattern::all_to_all})
    CHECK_EQ(cost(group, p, 4), cost(group, p, 1000));
  // A ring of 4: 6 slots out and 6 in, of 3 flags each at this end. Done with them: 2 sends, 2 sums passed on, 1 kept, 2 forwards of two copies, 1 received.
  CHECK_EQ(cost(group, Pattern::ring, 1000), 6 * 3 + 6 * 3 + 2 + 2 + 1 + 2 * 2 + 1);
}

void errors_and_refusals() {
  section("an error half way; programs that do not fit");
  EnqueuedGroup group({.ranks = 2, .slots = 4, .pair = 64, .fan_out = 0});
  for (const auto& [name, nth] : {std::pair<const char*, int>{"cuStreamWaitValue32_v2", 2},
                                  {"cuStreamWriteValue32_v2", 3},
                                  {"cuMemcpyAsync", 1},
                                  {"cuLaunchKernel", 1}}) {
    Messages call = messages(group, Pattern::ring, 8, 16, 1);
    fake_cuda_fail(name, nth, cu::kInvalidValue);
    Error error;
    CHECK(!group.enqueuers[0]->enqueue(call[0]->call(), *group.streams[0], error));
    CHECK_CONTAINS(std::string(error.text), std::string(name).substr(0, 12));
    while (!group.runtime->drain(*group.streams[0], now_ns(), error))
      Enqueuer::end_waits(group.layout, group.pages[0]->at);
  }
  Messages shared = messages(group, Pattern::one_shot, 8, 16, 1);
  const Program& program = *shared[0]->call().program;
  CHECK_EQ(Enqueuer::refusal(group.layout, program, 64), std::string("pieces have 64 bytes, slots 0"));
  CHECK_EQ(Enqueuer::refusal(EnqueuerLayout({.ranks = 3, .pair = 64, .fan_out = 64}), program, 64),
           std::string("the program is for 2 ranks, the slots are for 3"));
  CHECK_EQ(Enqueuer::refusal(EnqueuerLayout({.ranks = 2, .slots = 3, .pair = 64, .fan_out = 64}), program, 64),
           std::string("the program was verified for 4 slots, there are 3"));
  CHECK_EQ(Enqueuer::refusal(EnqueuerLayout({.ranks = 2, .pair = 64, .fan_out = 64}), program, 64), std::string());
}

// One of two ranks in a process of its own. `pages`: of both ranks' flags.
void rank_in_a_process(int rank, Line& line, SharedPages* const (&pages)[2], const EnqueuerLayout& layout) {
  fake_cuda_reset();
  Error error;
  {
    const auto runtime = DriverRuntime::open(fake_cuda(), 0, error);
    CHECK(runtime && runtime->load_kernels(fake_cuda_image(), kernel_names(), error));
    const DeviceMemory data = device_memory(*runtime, layout.data_bytes(), error);
    SharedMemory own;
    CHECK(runtime->share(*data, layout.data_bytes(), own, error));
    line.say(own);
    PeerMemory peer = peer_memory(*runtime, line.hear<SharedMemory>(), error);
    const RegisteredMemory flags[2] = {registered_memory(*runtime, pages[0]->at, pages[0]->bytes, error),
                                       registered_memory(*runtime, pages[1]->at, pages[1]->bytes, error)};
    const DeviceStream stream = device_stream(*runtime, error);
    CHECK(peer && flags[0] && flags[1] && stream);
    std::vector<RankSegments> segments(2);
    for (int r = 0; r < 2; ++r) segments[static_cast<size_t>(r)] = {r == rank ? *data : peer->data, flags[r]->device};
    const Enqueuer enqueuer(*runtime, layout, rank, segments);
    Random random(77);
    std::vector<std::unique_ptr<EnqueuedMessage>> all;
    for (int k = 0; k < 40; ++k) {
      const auto pattern = static_cast<Pattern>(random.below(kPatterns));
      const size_t count = 1 + random.below(2000), piece = 1 + random.below(128);
      all.push_back(std::make_unique<EnqueuedMessage>(*runtime, pattern, 2, rank, count, piece, k));
      CHECK(enqueuer.enqueue(all.back()->call(), *stream, error));
    }
    if (!runtime->drain(*stream, after_ms(60'000), error)) fail(__FILE__, __LINE__, error.text);
    for (auto& message : all) message->check();
    // Both have closed before either frees.
    all.clear();
    line.meet();
    peer.reset();
    line.meet();
  }
  CHECK_EQ(fake_cuda_misuse(), std::string());
  CHECK(fake_cuda_live().none());
}

void ranks_in_processes() {
  section("two processes: slots in memory of one another's device, flags in pages of both");
  const EnqueuerLayout layout({.ranks = 2, .slots = 4, .pair = 512, .fan_out = 512});
  SharedPages first((layout.flag_bytes() + 4095) / 4096 * 4096), second(first.bytes);
  SharedPages* const pages[2] = {&first, &second};
  two_processes(120, [&](int rank, Line& line) { rank_in_a_process(rank, line, pages, layout); });
}

}  // namespace

int main() {
  start("cuda_enqueuer_test", 240);
  ranks_in_processes();  // first: a process with a driver forks none
  for (void (*const test)() : {calls_in_a_row, replays, absent_rank, premultiplied, host_cost, errors_and_refusals}) {
    test();
    CHECK_EQ(fake_cuda_misuse(), std::string());
    CHECK(fake_cuda_live().none());
  }
  return 0;
}
