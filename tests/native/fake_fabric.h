// The inside of fake_verbs.h: its objects, each derived from what the caller sees. One lock for all; memory is moved without it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "fake_verbs.h"

namespace ringcomm::test::fake {

struct Context;

struct Card : ibv::Device {  // a device
  bool up = true;
  ibv::Gid gids[3] = {};
  std::vector<Context*> open;
  std::deque<int> fail_next;
};
struct Context : ibv::Context {
  Card* card;
  uint32_t most_bytes;
  int event_write;  // the other end of async_fd
  std::deque<ibv::AsyncEvent> events;
};
struct Channel : ibv::CompChannel {
  int write_end;
  std::deque<ibv::Cq*> events;
};
struct Qp;
struct Completion {
  ibv::Wc wc;
  Qp* qp;
  uint64_t frees;  // requests of the queue up to here are gone with it; 0: none
};
struct Cq : ibv::Cq {
  std::deque<Completion> done;
  bool armed = false;
  uint64_t pushed = 0;
  std::atomic<uint64_t> taken{0};
};
struct Request {
  ibv::SendWr wr;
  std::vector<ibv::Sge> pieces;
  std::string inlined;
  uint64_t number;
  bool overtaken = false;
};
struct Qp : ibv::Qp {
  ibv::QpInitAttr made;
  ibv::QpAttr with{};
  std::deque<Request> todo;
  uint64_t posted = 0, freed = 0;
  uint32_t receives = 0;
};
struct Mr : ibv::Mr {
  int access;
  bool spoilt;
  bool covers(uint64_t from, size_t length) const {
    const auto begin = reinterpret_cast<uintptr_t>(addr);
    return from >= begin && length <= this->length && from - begin <= this->length - length;
  }
};

struct Fabric {
  std::mutex mutex;
  std::condition_variable news, idle;
  Card cards[2];
  std::map<uint32_t, Qp*> queue_pairs;  // by number
  std::map<uint32_t, Mr*> regions;      // by key
  std::thread nic;
  bool stop = false, held = false, overtake = false, spoil = false, busy = false;
  uint32_t most_bytes = 8u << 20, most_inline = 512, next_qp = 17, next_key = 0x100, last_served = 0;
  size_t most_registered = SIZE_MAX;
  FakeCounts counts;

  Fabric();
  ~Fabric();
  void run();
  bool step(std::unique_lock<std::mutex>& hold);
  int transfer(std::unique_lock<std::mutex>& hold, Qp& from, Request& request);
  Qp* other_end(const Qp& from);
  void complete(Qp& qp, const Request& request, int status);
  void receive(Qp& qp, uint32_t immediate, uint32_t bytes);
  void break_down(Qp& qp);
  void push(Cq& cq, const Completion& completion);
};
Fabric& fabric();

inline int in_card(const std::string& name) { return name == "fake0" ? 0 : name == "fake1" ? 1 : -1; }

}  // namespace ringcomm::test::fake
