// What the host interpreter makes of a plan: all ranks by turns in one thread, over queues. The kernels must give the same bits.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "check.h"
#include "core/interpreter.h"

namespace ringcomm::test {

// One-way queue of one writer and one reader. Never full: room is another test's subject.
class QueueReceiver final : public Receiver {
 public:
  explicit QueueReceiver(int peer) : peer_(peer) {}
  const char* peek(size_t, uint32_t* tag) override {
    if (messages_.empty()) return nullptr;
    *tag = messages_.front().first;
    return messages_.front().second.data();
  }
  void release() override { messages_.pop_front(); }
  void flush() override {}
  size_t capacity() const override { return size_t{1} << 30; }
  int peer() const override { return peer_; }
  const Error* error() const override { return nullptr; }
  void put(uint32_t tag, const std::vector<char>& data) { messages_.emplace_back(tag, data); }

 private:
  const int peer_;
  std::deque<std::pair<uint32_t, std::vector<char>>> messages_;
};

class QueueSender final : public Sender {
 public:
  std::vector<QueueReceiver*> readers;
  char* reserve(size_t bytes) override {
    next_.assign(bytes + 1, 0);
    return next_.data();
  }
  void publish(uint32_t tag) override {
    for (QueueReceiver* r : readers) r->put(tag, next_);
  }
  bool settled() override { return true; }
  size_t capacity() const override { return size_t{1} << 30; }
  int waits_for() const override { return -1; }
  const Error* error() const override { return nullptr; }

 private:
  std::vector<char> next_;
};

class HostGroup {
 public:
  explicit HostGroup(const std::vector<Program>& programs) {
    const int n = static_cast<int>(programs.size());
    std::map<std::tuple<ConnectionKind, int, int>, QueueReceiver*> by_ends;
    ranks_.resize(programs.size());
    for (int r = 0; r < n; ++r)
      for (const ConnectionRef& c : programs[r].receivers) {
        queues_.push_back(std::make_unique<QueueReceiver>(c.peer));
        by_ends[{c.kind, c.peer, r}] = queues_.back().get();
        ranks_[r].receivers.push_back(queues_.back().get());
      }
    for (int r = 0; r < n; ++r)
      for (const ConnectionRef& c : programs[r].senders) {
        senders_.push_back(std::make_unique<QueueSender>());
        for (int peer = 0; peer < n; ++peer)
          if (auto found = by_ends.find({c.kind, r, peer});
              found != by_ends.end() && (c.kind == ConnectionKind::fan_out || c.peer == peer))
            senders_.back()->readers.push_back(found->second);
        ranks_[r].senders.push_back(senders_.back().get());
      }
  }
  // `runs` by rank, without connections.
  void run(std::vector<Run> runs) {
    std::vector<std::unique_ptr<Interpreter>> all;
    for (size_t r = 0; r < runs.size(); ++r) {
      runs[r].senders = ranks_[r].senders.data(), runs[r].receivers = ranks_[r].receivers.data();
      all.push_back(std::make_unique<Interpreter>(runs[r]));
    }
    for (bool done = false, moved = true; !done;) {
      CHECK(moved);
      done = true, moved = false;
      for (auto& one : all) {
        const Progress p = one->advance();
        CHECK(p != Progress::failed);
        done &= p == Progress::done, moved |= p == Progress::moved || p == Progress::done;
      }
    }
  }

 private:
  struct Rank {
    std::vector<Sender*> senders;
    std::vector<Receiver*> receivers;
  };
  std::vector<std::unique_ptr<QueueReceiver>> queues_;
  std::vector<std::unique_ptr<QueueSender>> senders_;
  std::vector<Rank> ranks_;
};

}  // namespace ringcomm::test
