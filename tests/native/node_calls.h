// What groups over several nodes do, over whatever wire is between them; nodes by rank.
#pragma once

#include <string>
#include <vector>

#include "cluster.h"

namespace ringcomm::test {

inline void calls(const std::vector<int>& nodes, bool verbs = false) {
  const int ranks = static_cast<int>(nodes.size());
  ClusterOptions options;
  options.ranks = ranks, options.nodes = nodes, options.verbs = verbs;
  Cluster cluster(options);
  for (int g = 0; g < 2; ++g) {  // the second group finds the control sockets of the first
    std::vector<Group>& group = cluster.make_group("calls" + std::to_string(g));
    cluster.each_rank([&](int r) {
      Communicator& comm = *group[r].comm;
      CHECK_EQ(std::string(comm.connection_kind()), std::string(verbs ? "shm+verbs" : "shm+tcp"));
      for (uint64_t k = 0; k < 3; ++k) {
        std::vector<Pending> all;
        for (size_t count : {size_t{1}, size_t{100}, size_t{3000}, size_t{40'000}})
          all.push_back(all_reduce(comm, k, count, k == 0));
        all.push_back(barrier(comm, false));
        for (size_t count : {size_t{2}, size_t{9000}}) {
          all.push_back(broadcast(comm, k, count, static_cast<int>(k) % ranks, false));
          all.push_back(all_gather(comm, k, count, false));
        }
        for (Pending& p : all) finish(comm, p);
      }
      // Messages, small and large, around the ring.
      for (size_t bytes : {size_t{8}, size_t{200'000}}) {
        auto out = std::make_shared<std::vector<char>>(bytes), in = std::make_shared<std::vector<char>>(bytes);
        const int next = (r + 1) % ranks, before = (r + ranks - 1) % ranks;
        fill(out->data(), bytes, static_cast<uint64_t>(r), bytes);
        RequestPtr sent = comm.send(out->data(), bytes, next, 3, now_ns() + 60 * kSecond, out);
        RequestPtr got = comm.recv(in->data(), bytes, before, 3, now_ns() + 60 * kSecond, in);
        CHECK(comm.wait(*got, INT64_MAX, nullptr) && comm.wait(*sent, INT64_MAX, nullptr));
        succeeded(*got), succeeded(*sent);
        CHECK(holds(in->data(), bytes, static_cast<uint64_t>(before), bytes));
      }
    });
  }
}

// A rank that leaves as soon as its own part is done has sent all of it.
inline void leaves_at_once(const std::vector<int>& nodes, bool verbs = false) {
  ClusterOptions options;
  options.ranks = static_cast<int>(nodes.size()), options.nodes = nodes, options.verbs = verbs;
  Cluster cluster(options);
  for (int round = 0; round < 5; ++round) {
    std::vector<Group>& group = cluster.make_group("leaver" + std::to_string(round));
    cluster.each_rank([&](int r) {
      Communicator& comm = *group[r].comm;
      Pending p = broadcast(comm, 1, 4000, 0, true);
      if (r > 0) usleep(20'000);
      finish(comm, p);
      comm.leave(now_ns() + kSecond, true);
      if (r == 0) cluster.engine(0).remove(&comm), group[0].comm.reset();
    });
  }
}

// A rank may destroy the group while the others still tell it that they have come.
inline void gone_as_soon_as_made(bool verbs = false) {
  ClusterOptions options;
  options.ranks = 3, options.nodes = {0, 1, 2}, options.verbs = verbs;
  Cluster cluster(options);
  for (int round = 0; round < 40; ++round) {
    std::vector<Group>& group = cluster.make_group("short" + std::to_string(round));
    cluster.each_rank([&](int r) {
      if (r == 1) usleep(1000);
      group[r].comm->leave(now_ns(), false);
      cluster.engine(r).remove(group[r].comm.get());
      group[r].comm.reset();
      group[r].seed.reset();
    });
  }
}

}  // namespace ringcomm::test
