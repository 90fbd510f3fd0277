// The flight record in the pickle that torch's analyser reads (docs/hangs.md, "Read the flight record").
//
// Threads: any, with or without Python's lock: a group may fail while Python's own thread is stuck.
#pragma once

#include <string>

namespace ringcomm {

// The dictionary of torch's own dump. `messages`: sends and receives stand among the entries, else in a list of their own.
std::string pickled_flight_record(bool messages);

// Writes it to `prefix` + this process's rank in the job, all at once. False: `error` says why not.
bool write_flight_record(const std::string& prefix, std::string& error);
// The same, with the outcome in the log.
void write_flight_record_on_failure(const std::string& prefix);

// This process's rank in the job, as the last group that was made says it.
void set_flight_rank(int rank);
int flight_rank();

}  // namespace ringcomm
