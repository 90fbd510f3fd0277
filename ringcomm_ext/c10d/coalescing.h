// Blocks of calls that end in ONE Work (startCoalescing ... endCoalescing, torch's _coalescing_manager, batch_isend_irecv).
//
// A call inside a block is started at once, like any other, and may be waited for by itself; the block only remembers it. Messages need no pairing
// up (tags, early arrival, messages to oneself are the mailbox's affair), so there is nothing to gain from holding calls back, and a block that is
// left by an exception has nothing to undo: its calls go on and the group works. torch tells the backend of no such exception, so a block may stay
// open for ever. It costs little then: calls that have ended are forgotten.
//
// Threads: a block belongs to the thread that opened it; calls of other threads are not in it.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "c10d/work.h"

namespace ringcomm {

using CallWorkPtr = c10::intrusive_ptr<CallWork>;

// The works of a block that have not ended, or have failed; and the span of those that ended.
struct Block {
  std::vector<CallWorkPtr> works;
  size_t look_at = 8;  // forget the ended ones when there are so many
  int64_t first_ns = INT64_MAX, last_ns = 0;
  uint64_t sequence = 0;

  void add(CallWorkPtr work);
  void add(Block&& inner);
};

class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, Block block) : Work(rank, c10d::OpType::COALESCED), block_(std::move(block)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return {}; }
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  // Its value is a list of the outputs that are on devices.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return block_.sequence; }

 private:
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  using Get = FuturePtr (c10d::Work::*)();
  std::vector<c10::Device> devices() const;
  void after_all(Get future, std::function<void()> then);

  Block block_;
  std::mutex futures_mutex_;
  FuturePtr future_, future_result_;
};

// The open blocks of one group.
class Blocks {
 public:
  void open();
  bool any() const { return open_.load(std::memory_order_relaxed) > 0; }
  // Remembers it if this thread has a block open.
  void add(const CallWorkPtr& work);
  // False: this thread has none open. A block inside another is part of that one too.
  bool close(Block& block);

 private:
  static constexpr size_t kDeepest =
      32;  // blocks inside blocks; more were left by exceptions, and the oldest is dropped

  std::vector<Block>* mine();

  std::mutex mutex_;
  std::map<std::thread::id, std::vector<Block>> blocks_;  // innermost last
  std::atomic<int> open_{0};
};

}  // namespace ringcomm
