// RINGCOMM_DEBUG: one line per event, to stderr or to RINGCOMM_DEBUG_FILE. Any thread.
#pragma once

#include <string>

namespace ringcomm {

enum class LogLevel : int { warn = 0, info = 1, debug = 2 };

// `file` may hold %h (host) and %p (pid); empty: stderr. False if the file cannot be opened.
bool set_log(LogLevel level, const std::string& file, const std::string& prefix);
bool logs(LogLevel level);
void log(LogLevel level, const std::string& line);

}  // namespace ringcomm
