// The groups whose requests stand in the flight record: what the number in an entry means.
//
// Threads: any. A group of which the record has nothing left is forgotten soon after it is gone, so making groups again and again costs no memory.
#pragma once

#include <string>
#include <vector>

namespace ringcomm {

struct FlightGroup {
  int number = -1;
  std::string name, description;
  int rank = 0;            // of this process in it
  std::vector<int> ranks;  // in the job, by rank in the group
  bool gone = false;       // destroyed in this process
};

int enter_flight_group(FlightGroup group);  // returns its number
void leave_flight_group(int number);
std::vector<FlightGroup> flight_groups();  // in the order they were entered

}  // namespace ringcomm
