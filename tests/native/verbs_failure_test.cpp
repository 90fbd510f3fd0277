// What goes wrong with devices, by the fake: each failed completion, bad keys, cut cables, devices that cannot do or be what was asked for.
#include <arpa/inet.h>

#include <cstring>

#include "verbs_pair.h"

using namespace ringcomm;
using namespace ringcomm::test;

namespace {

// A pair over which a message of each sort has gone.
std::unique_ptr<VerbsPair> connected(const PairOptions& options = {4096, 100 * kMs}) {
  auto two = std::make_unique<VerbsPair>(options);
  for (size_t bytes : {size_t{8}, size_t{500}}) put(*two, 0, bytes, 1, bytes), take(*two, 1, bytes, 1, bytes);
  await("all counts", [&] { return two->sender(0).settled(); });
  return two;
}

void check_names(const Error& error, const std::string& status) {
  CHECK(error.cause == Cause::connection);
  CHECK_EQ(error.rank, 1);
  CHECK_CONTAINS(error.text, "rank 1 at 127.0.0.1:");
  CHECK_CONTAINS(error.text, status);
  CHECK_CONTAINS(error.text, "fake0 port 1");
}

// Whatever a completion says is in the error, by name and with the device's own number; and nothing hangs.
void completions() {
  const std::pair<int, const char*> all[] = {{1, "LOC_LEN_ERR (1, vendor error 129)"},
                                             {2, "LOC_QP_OP_ERR (2,"},
                                             {4, "LOC_PROT_ERR (4,"},
                                             {9, "REM_INV_REQ_ERR (9,"},
                                             {10, "REM_ACCESS_ERR (10,"},
                                             {11, "REM_OP_ERR (11,"},
                                             {12, "RETRY_EXC_ERR (12, vendor error 129): no acknowledgement"},
                                             {13, "RNR_RETRY_EXC_ERR (13,"},
                                             {21, "GENERAL_ERR (21,"},
                                             {77, "unknown (77,"}};
  for (const auto& [status, name] : all) {
    for (size_t bytes : {size_t{8}, size_t{500}}) {
      auto two = connected();
      fake_fail_next("fake0", status);
      const int64_t begin = now_ns();
      check_names(sending_fails(*two, 0, bytes), name);
      CHECK(now_ns() - begin > 80 * kMs);  // the control plane may have a better reason
    }
  }
}

// One that nobody asked for, of a small message, shows as well.
void unasked_completion() {
  auto two = connected();
  fake_fail_next("fake0", 12);
  put(*two, 0, 8, 1, 1);
  await("an error", [&] { return !two->sender(0).settled() && two->sender(0).error(); });
  check_names(*two->sender(0).error(), "RETRY_EXC_ERR");
}

// The last message, of which nobody asks any more: its reader hears that it will not come, and why.
void failed_last_message() {
  auto two = connected();
  fake_fail_next("fake0", 12);
  put(*two, 0, 8, 1, 1);
  CHECK_CONTAINS(receiving_fails(*two, 1, 8).text, "its device reports RETRY_EXC_ERR (12, vendor error 129)");
}

// Both queue pairs fail; each end says what its device told it, or the other's device.
void wrong_key() {
  VerbsPair two({4096, 1000 * kMs});  // a consequence must wait until a busy machine has brought the reason
  put(two, 0, 8, 1, 0), take(two, 1, 8, 1, 0);
  fake_spoil_keys(true);
  put(two, 0, 500, 1, 1);
  check_names(sending_fails(two, 0, 500), "REM_ACCESS_ERR (10, vendor error 129): the peer's device refused");
  const Error theirs = receiving_fails(two, 1, 500);
  CHECK_CONTAINS(theirs.text, "its device reports REM_ACCESS_ERR (10, vendor error 129)");
}

// A count that does not go through is the reader's failure; its writer hears of it though the reader peeks no more.
void failed_count() {
  auto two = connected();
  fake_fail_next("fake1", 12);
  put(*two, 0, 500, 1, 1), take(*two, 1, 500, 1, 1);  // nobody looks here again
  await("an error", [&] { return !two->sender(0).settled() && two->sender(0).error(); });
  CHECK_CONTAINS(two->sender(0).error()->text, "its device reports RETRY_EXC_ERR (12, vendor error 129)");
  CHECK_CONTAINS(receiving_fails(*two, 1, 8).text, "RETRY_EXC_ERR");
}

void cables() {
  {
    auto two = connected();
    fake_link("fake0", false);
    await("the port's event", [&] { return !two->net(0).device(0).news().empty(); });
    const Error error = sending_fails(*two, 0, 8);
    check_names(error, "LOC_QP_OP_ERR");
    CHECK_CONTAINS(error.text, "fake0 port 1 reported PORT_ERR (10)");
    fake_link("fake0", true);
  }
  {
    auto two = connected();
    fake_link("fake1", false);
    check_names(sending_fails(*two, 0, 8), "RETRY_EXC_ERR");
    fake_link("fake1", true);
  }
  connected();  // a new one works at once
}

// Messages above what a device takes at once are split; the data is right and nothing larger is asked of it.
void split() {
  constexpr size_t kBytes = 1 << 20;
  fake_most_bytes(64 << 10);
  VerbsPair two({kBytes});
  for (uint64_t k = 0; k < 40; ++k) put(two, 0, kBytes - k, 1, k), take(two, 1, kBytes - k, 1, k);
  CHECK_EQ(fake_counts().largest, uint64_t{64} << 10);
}

// What a message costs: payload and 8 bytes; one request that carries bytes; and empty ones, at most a count and a mark for each message.
// (How many come late, by the poller, depends on the time it takes.)
void costs() {
  auto two = connected();
  const auto cost = [&](size_t bytes, uint64_t messages) {
    const FakeCounts before = fake_counts();
    for (uint64_t k = 0; k < messages; ++k) put(*two, 0, bytes, 1, k), take(*two, 1, bytes, 1, k);
    FakeCounts spent = fake_counts();
    spent.bytes -= before.bytes, spent.requests -= before.requests, spent.carrying -= before.carrying;
    return spent;
  };
  const FakeCounts small = cost(8, 320);
  CHECK_EQ(small.bytes, 320u * 16);
  CHECK_EQ(small.carrying, 320u);
  CHECK(small.requests <= 3 * 320 + 2);  // some may be left of what went before
  const FakeCounts large = cost(4096, 100);
  CHECK_EQ(large.bytes, 100u * (4096 + 8));
  CHECK_EQ(large.carrying, 100u);
  CHECK(large.requests <= 300 + 2);
}

// Devices that take less inline, or nothing.
void inline_sizes() {
  for (uint32_t most : {0u, 8u, 63u}) {
    fake_most_inline(most);
    VerbsPair two;
    for (uint64_t k = 0; k < 300; ++k) put(two, 0, k % 57, 1, k), take(two, 1, k % 57, 1, k);
  }
}

void rails() {
  PairOptions options;
  options.channels = 3, options.two_rails = true;
  VerbsPair two(options);
  for (int channel : {0, 1, 2}) put(two, 0, 500, 1, 1, channel), take(two, 1, 500, 1, 1, true, channel);
  fake_link("fake0", false);  // rank 0's first rail is rank 1's second
  Sender& by_other = two.sender(0, 1);
  CHECK(by_other.capacity() > 0);
  await("an error", [&] {
    if (two.sender(0, 0).reserve(8)) two.sender(0, 0).publish(1);
    return two.sender(0, 0).error() != nullptr;
  });
  CHECK_CONTAINS(two.sender(0, 0).error()->text, "fake0 port 1");
}

std::string refusal(const VerbsRail& rail) {
  Poller poller;
  TcpOptions o;
  o.bind = {"127.0.0.1"};
  Error error;
  auto port = TcpPort::open(poller.loop(), o, error);
  VerbsOptions options;
  options.rails = {rail};
  CHECK(VerbsNet::open(fake_verbs(), *port, options, error) == nullptr);
  return error.text;
}

void refusals() {
  CHECK_CONTAINS(refusal({"mlx5_9", 1, -1}), "mlx5_9 port 1 cannot be used: there is no such device");
  CHECK_CONTAINS(refusal({"fake0", 2, -1}), "no such port");
  CHECK_CONTAINS(refusal({"fake0", 1, 5}), "no GID index 5; there are 0 (fe80::1, RoCE v2), 1 (10.77.0.1, RoCE v2), 2");
  fake_most_registered(100);
  CHECK_CONTAINS(refusal({"fake0", 1, -1}), "cannot be registered with the RDMA device fake0 port 1: Cannot allocate");
  fake_link("fake1", false);
  CHECK_CONTAINS(refusal({"fake1", 1, -1}), "the port is not active (state 1)");
  std::string why_not;
  CHECK_EQ(list_verbs_ports(fake_verbs(), why_not).size(), 2u);
  CHECK(!list_verbs_ports(fake_verbs(), why_not)[1].active);
}

// Memory that the device does not take in the midst of a job.
void unregistered() {
  auto two = connected({1 << 20, 100 * kMs});
  fake_most_registered(1 << 20);
  Sender& back = two->sender(1);
  await("room", [&] { return back.reserve(8); });
  CHECK(back.reserve(1000) == nullptr);
  CHECK(back.error()->cause == Cause::no_memory);
  CHECK_CONTAINS(back.error()->text, "cannot be registered");
}

ibv::GidEntry gid(uint32_t index, const char* text, uint32_t type) {
  ibv::GidEntry e{};
  CHECK_EQ(inet_pton(AF_INET6, text, e.gid.raw), 1);
  e.gid_index = index, e.gid_type = type;
  return e;
}

void gids() {
  using namespace ibv;
  const GidEntry local = gid(0, "fe80::1", kGidRoceV2), v1 = gid(1, "::ffff:10.0.0.1", kGidRoceV1),
                 global = gid(2, "2001:db8::1", kGidRoceV2), v4 = gid(3, "::ffff:10.0.0.1", kGidRoceV2),
                 other = gid(4, "::ffff:10.0.0.2", kGidRoceV2);
  CHECK_EQ(choose_gid({local, v1, global, v4, other}, true), 3);
  CHECK_EQ(choose_gid({local, v1, global}, true), 2);
  CHECK_EQ(choose_gid({v1, local}, true), 0);
  CHECK_EQ(choose_gid({v1}, true), 1);
  CHECK_EQ(choose_gid({}, true), -1);
  CHECK_EQ(choose_gid({gid(0, "fe80::1", kGidIb), gid(1, "::ffff:1.2.3.4", kGidIb)}, false), 0);
}

}  // namespace

int main() {
  start("verbs_failure_test", 240);
  const std::pair<const char*, void (*)()> promises[] = {
      {"each completion is named", completions},
      {"one that was not asked for", unasked_completion},
      {"a last message that fails", failed_last_message},
      {"a wrong key", wrong_key},
      {"a count that fails", failed_count},
      {"cables", cables},
      {"messages are split", split},
      {"costs", costs},
      {"inline sizes", inline_sizes},
      {"rails", rails},
      {"refusals", refusals},
      {"memory that is not registered", unregistered},
      {"which GID", gids},
  };
  for (const auto& [name, promise] : promises) {
    section(name);
    promise();
    fake_reset();
  }
  return 0;
}
