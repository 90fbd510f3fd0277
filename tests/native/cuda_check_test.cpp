// The steps of scripts/gpu_check over the fake driver, linked in: each is done, and the driver has nothing to note. (The program and its script, over the fake as a library: gpu/test_gpu_check.py.)
#include "../gpu/check_probe.cpp"
#include "../gpu/check_results.cpp"
#include "../gpu/check_speed.cpp"
#include "../gpu/figures.cpp"
#include "fake_group.h"

using namespace ringcomm;
using namespace ringcomm::gpu_check;

int main() {
  test::start("cuda_check_test", 280);
  Options options;
  options.machine = test::fake_machine();
  options.small = true, options.ranks = 3;
  Figures figures;
  test::section("processes");  // first: a process with a driver forks none
  processes(options, figures);
  process_results(options, figures);
  test::section("the device");
  probe(options, figures);
  copy_rate(options, figures);
  for (cuda::DeviceMode mode : {cuda::DeviceMode::spin, cuda::DeviceMode::memop}) {
    test::section(name(mode));
    results(options, mode, figures);
    repeats(options, mode, figures);
    absent(options, mode, figures);
    speed(options, mode, figures);
    test::nothing_left();
  }
  CHECK_CONTAINS(figures.json(), "\"device\": \"Fake GPU\"");
  CHECK_CONTAINS(figures.json(), "\"program\": \"two_shot\"");
  return 0;
}
