// The program that scripts/gpu_check builds and runs: one step a process, each a JSON object on the last line of its output. No torch, no CUDA header; the driver is a library to open, so a fake one will do.
#pragma once

#include <string>
#include <vector>

#include "group_ranks.h"

namespace ringcomm::gpu_check {

// What a step found: names and figures, in the order in which they came.
class Figures {
 public:
  void add(const std::string& name, const std::string& text);
  void add(const std::string& name, double number);
  void add(const std::string& name, int number) { add(name, static_cast<double>(number)); }
  void add(const std::string& name, bool is) { raw(name, is ? "true" : "false"); }
  void raw(const std::string& name, const std::string& json);
  std::string json() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

struct Options {
  test::Machine machine;
  bool small = false;  // sizes for a fake driver: what a GPU does in a second takes it hours
  int ranks = 4;
};

// Each returns or ends the program with a sentence (test::fail).
void probe(const Options& options, Figures& figures);      // the device, memops, kernels
void processes(const Options& options, Figures& figures);  // memory and flags of two processes
void results(const Options& options, cuda::DeviceMode mode, Figures& figures);
void process_results(const Options& options, Figures& figures);
void repeats(const Options& options, cuda::DeviceMode mode, Figures& figures);
void absent(const Options& options, cuda::DeviceMode mode, Figures& figures);
void speed(const Options& options, cuda::DeviceMode mode, Figures& figures);
void copy_rate(const Options& options, Figures& figures);

}  // namespace ringcomm::gpu_check
