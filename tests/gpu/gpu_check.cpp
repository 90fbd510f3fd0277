#include "gpu_check.h"

#include <fstream>
#include <iterator>

using namespace ringcomm;
using namespace ringcomm::gpu_check;

namespace {

std::vector<char> contents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool run(const std::string& step, const Options& options, Figures& figures) {
  using cuda::DeviceMode;
  if (step == "probe") return probe(options, figures), true;
  if (step == "processes") return processes(options, figures), true;
  if (step == "spin results") return results(options, DeviceMode::spin, figures), true;
  if (step == "memop results") return results(options, DeviceMode::memop, figures), true;
  if (step == "process results") return process_results(options, figures), true;
  if (step == "spin repeats") return repeats(options, DeviceMode::spin, figures), true;
  if (step == "memop repeats") return repeats(options, DeviceMode::memop, figures), true;
  if (step == "spin absent rank") return absent(options, DeviceMode::spin, figures), true;
  if (step == "memop absent rank") return absent(options, DeviceMode::memop, figures), true;
  if (step == "copy rate") return copy_rate(options, figures), true;
  if (step == "spin speed") return speed(options, DeviceMode::spin, figures), true;
  if (step == "memop speed") return speed(options, DeviceMode::memop, figures), true;
  return false;
}

}  // namespace

// gpu_check STEP LIBRARY KERNELS RANKS [small]
int main(int argc, char** argv) {
  if (argc < 5) return std::fprintf(stderr, "usage: gpu_check STEP LIBRARY KERNELS RANKS [small]\n"), 2;
  const std::string library = argv[2];
  const std::vector<char> image = contents(argv[3]);
  if (image.empty()) return std::fprintf(stderr, "%s: no kernels\n", argv[3]), 1;
  Options options;
  options.machine.image = image.data();
  options.machine.driver = [&]() -> const cuda::Driver& {
    std::string why_not;
    const cuda::Driver* const driver = cuda::open_driver(library, why_not);
    if (driver == nullptr) test::fail(__FILE__, __LINE__, why_not);
    return *driver;
  };
  options.ranks = std::atoi(argv[4]);
  options.small = argc > 5;
  Figures figures;
  if (!run(argv[1], options, figures)) return std::fprintf(stderr, "no step '%s'\n", argv[1]), 2;
  std::printf("%s\n", figures.json().c_str());
  return 0;
}
