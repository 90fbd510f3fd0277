// Programs over registered memory: ranks on threads of this process, each with buffers that may be lent.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/interpreter.h"
#include "kinds.h"
#include "programs.h"

namespace ringcomm::test {

using Make = std::function<Packed(int ranks, int rank)>;
inline constexpr size_t kPieceElements = 64;  // small, so that a few thousand elements make many loops

inline int64_t lent_value(int rank, int chunk, size_t i) {
  return int64_t{1000003} * rank + 7919 * chunk + static_cast<int64_t>(i * i);
}

// One rank's end of a group: its program, connections, and memory for chunks.
class LentRank {
 public:
  LentRank(World& world, int ranks, int rank, const Make& make) : world_(world), rank_(rank) {
    const Packed table = make(ranks, rank);
    CHECK_EQ(Program::load(table.data(), table.size(), program_), "");
    Connections& c = world.rank(rank);
    for (const ConnectionRef& s : program_.senders) senders_.push_back(c.sender(s.kind, 0, s.peer));
    for (const ConnectionRef& r : program_.receivers) receivers_.push_back(c.receiver(r.kind, 0, r.peer));
  }
  const Program& program() const { return program_; }

  // Chunks of `count` elements each, in registered memory or not.
  std::vector<Chunk> chunks(int n, size_t count, bool registered) {
    std::vector<Chunk> all;
    for (int c = 0; c < n; ++c) {
      char* data = registered ? world_.lendable(rank_, count * sizeof(int64_t) + 1) : plain(count);
      all.push_back({data, count});
    }
    return all;
  }
  void set_inputs(std::vector<Chunk>& in) const {
    for (size_t c = 0; c < in.size(); ++c)
      for (size_t i = 0; i < in[c].count; ++i) values(in[c])[i] = lent_value(rank_, static_cast<int>(c), i);
  }
  static int64_t* values(const Chunk& c) { return reinterpret_cast<int64_t*>(c.data); }

  std::unique_ptr<Interpreter> start(std::vector<Chunk> in, std::vector<Chunk> out) const {
    Run run;
    run.program = &program_;
    run.in = std::move(in), run.out = std::move(out);
    run.senders = senders_.data(), run.receivers = receivers_.data();
    run.dtype = DType::int64, run.element = sizeof(int64_t), run.piece = kPieceElements;
    run.reduce = run.finish = reduce_function(DType::int64, ReduceOp::sum);
    run.lend_from = 100;
    return std::make_unique<Interpreter>(run);
  }

 private:
  char* plain(size_t count) {
    plain_.push_back(std::make_unique<std::vector<int64_t>>(count + 1));
    return reinterpret_cast<char*>(plain_.back()->data());
  }

  World& world_;
  const int rank_;
  Program program_;
  std::vector<Sender*> senders_;
  std::vector<Receiver*> receivers_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> plain_;
};

inline void to_end(Interpreter& run) {
  await("the end of a program", [&] {
    const Progress p = run.advance();
    CHECK(p != Progress::failed);
    return p == Progress::done;
  });
}

// `body(rank object, rank)` on a thread per rank.
inline void on_ranks(int ranks, const Make& make, const std::function<void(LentRank&, int)>& body,
                     const Kind& kind = kShm) {
  auto world = kind.make({ranks});
  std::vector<std::thread> all;
  for (int r = 0; r < ranks; ++r)
    all.emplace_back([&, r] {
      LentRank rank(*world, ranks, r, make);
      body(rank, r);
    });
  for (std::thread& t : all) t.join();
}

}  // namespace ringcomm::test
