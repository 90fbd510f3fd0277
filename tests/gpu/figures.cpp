#include "gpu_check.h"

namespace ringcomm::gpu_check {

void Figures::raw(const std::string& name, const std::string& json) {
  text_ += (text_.empty() ? "\"" : ", \"") + name + "\": " + json;
}

void Figures::add(const std::string& name, const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  raw(name, quoted + "\"");
}

void Figures::add(const std::string& name, double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", number);
  raw(name, text);
}

}  // namespace ringcomm::gpu_check
