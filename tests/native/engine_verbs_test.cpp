// Groups whose nodes are connected by verbs: right values, orderly ends, and failures of devices that name the rank. Runs on real devices too (test_verbs.h).
#include "node_calls.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

// A queue pair that breaks while both processes live: every rank's call ends in the error of the one that saw it, with the status, once the control plane has had its
// time to name a dead process.
void a_broken_connection() {
  ClusterOptions options;
  options.nodes = {0, 1}, options.verbs = true;
  Cluster cluster(options);
  std::vector<Group>& group = cluster.make_group("broken");
  cluster.each_rank([&](int r) {
    Pending p = all_reduce(*group[r].comm, 1, 4000, true);
    finish(*group[r].comm, p);
  });
  fake_fail_next("fake0", 12);
  const int64_t begin = now_ns();
  cluster.each_rank([&](int r) {
    Communicator& comm = *group[r].comm;
    Pending p = all_reduce(comm, 2, 4000, true, now_ns() + 60 * kSecond);
    CHECK(comm.wait(*p.request, INT64_MAX, nullptr));
    const Error* e = p.request->error();
    CHECK(e != nullptr);
    if (e->cause != Cause::connection) fail("the error of rank", r, e->text);
    // Rank 0's message or count, as rank 0 saw it or as it told rank 1. That the other end closed is the lesser reason.
    CHECK_CONTAINS(e->text, "RETRY_EXC_ERR (12, vendor error 129)");
    if (std::string(e->text).find("its device reports") == std::string::npos) CHECK_CONTAINS(e->text, "fake0 port 1");
  });
  CHECK(now_ns() - begin < 8 * kSecond);
}

}  // namespace

int main() {
  start("engine_verbs_test", 240);
  for (const std::vector<int>& nodes : {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 1, 2}, {0, 1, 0}}) {
    section(("calls over " + std::to_string(nodes.size()) + " ranks").c_str());
    calls(nodes, true);
  }
  section("one leaves at once");
  leaves_at_once({0, 1}, true);
  leaves_at_once({0, 0, 1}, true);
  section("gone as soon as made");
  gone_as_soon_as_made(true);
  if (!real_devices().empty()) return 0;
  section("a broken connection");
  a_broken_connection();
  await("queue pairs and memory to be given back",
        [] { return fake_counts().queue_pairs == 0 && fake_counts().regions == 0; });
  return 0;
}
