// Which verbs a native test uses: those in this process (fake_verbs.h), or real devices:
//   RINGCOMM_TEST_VERBS_DEVICE=rxe0,rxe1 RINGCOMM_TEST_VERBS_GID=1 connection_test
// Ranks take the devices by turns; the GID index is the same on all, chosen where it is not given.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "connections/verbs_net.h"
#include "fake_verbs.h"

namespace ringcomm::test {

inline std::vector<std::string> real_devices() {
  std::vector<std::string> names;
  const char* listed = std::getenv("RINGCOMM_TEST_VERBS_DEVICE");
  std::istringstream text(listed ? listed : "");
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

inline const VerbsLibrary& test_library() {
  if (real_devices().empty()) return fake_verbs();
  std::string why_not;
  const VerbsLibrary* library = verbs_library(why_not);
  if (library == nullptr) fail("RINGCOMM_TEST_VERBS_DEVICE", 0, why_not);
  return *library;
}

// The device of a rank, as the only rail.
inline VerbsOptions test_options(int rank) {
  const std::vector<std::string> real = real_devices();
  VerbsOptions options;
  VerbsRail rail;
  rail.device = real.empty() ? (rank % 2 ? "fake1" : "fake0") : real[static_cast<size_t>(rank) % real.size()];
  if (const char* gid = std::getenv("RINGCOMM_TEST_VERBS_GID"); gid && !real.empty()) rail.gid_index = std::atoi(gid);
  options.rails = {rail};
  return options;
}

inline std::unique_ptr<VerbsNet> open_test_net(TcpPort& port, int rank) {
  Error error;
  auto net = VerbsNet::open(test_library(), port, test_options(rank), error);
  if (!net) fail("the verbs of a rank", rank, error.text);
  return net;
}

}  // namespace ringcomm::test
