// RDMA devices of this process: what there is, and one port of one opened. docs/rdma.md.
//
// Threads: a VerbsDevice may be used by any; its asynchronous events (a port that goes down) are read by the poller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "connections/event_loop.h"
#include "connections/segment.h"
#include "connections/verbs_library.h"
#include "core/status.h"

namespace ringcomm {

// A port of a device, as verbs show it.
struct VerbsPortFacts {
  std::string device;
  int port = 1;
  bool active = false;
  bool ethernet = false;  // RoCE; else InfiniBand
  int lid = 0;
  int mtu = 0;  // active, bytes
};
// Empty and `why_not` where there is none. Devices that are neither InfiniBand nor RoCE are left out.
std::vector<VerbsPortFacts> list_verbs_ports(const VerbsLibrary& library, std::string& why_not);

// Which port to use.
struct VerbsRail {
  std::string device;
  int port = 1;
  int gid_index = -1;  // -1: chosen (choose_gid)
};

// Over Ethernet the first RoCE v2 entry with an IPv4 address, else with a global IPv6 one, else any of v2, else any; InfiniBand: 0. -1: no entry.
int choose_gid(const std::vector<ibv::GidEntry>& table, bool ethernet);
std::string gid_text(const ibv::Gid& gid);  // an IPv4 or IPv6 address
std::string gid_kind(uint32_t type);        // "RoCE v2"

class VerbsDevice {
 public:
  // Null and `error`: no such device, port not active, no GID, not permitted, ... The library and the loop must outlive it.
  static std::unique_ptr<VerbsDevice> open(const VerbsLibrary& library, EventLoop& loop, const VerbsRail& rail,
                                           Error& error);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  const VerbsLibrary& library() const { return library_; }
  EventLoop& loop() const { return loop_; }
  ibv::Context* context() const { return context_; }
  ibv::Pd* pd() const { return pd_; }
  const std::string& name() const { return name_; }  // "mlx5_0 port 1"
  int port() const { return rail_.port; }
  int gid_index() const { return rail_.gid_index; }
  const ibv::GidEntry& gid() const { return gid_; }
  bool ethernet() const { return attr_.link_layer == ibv::kLinkEthernet; }
  uint16_t lid() const { return attr_.lid; }
  int mtu() const { return attr_.active_mtu; }       // as verbs number it
  size_t most_bytes() const { return most_bytes_; }  // of one work request
  uint32_t most_requests() const { return static_cast<uint32_t>(limits_.max_qp_wr); }
  // "; rxe0 port 1 reported PORT_ERR (10) 0.3 s ago", or nothing.
  std::string news() const;

 private:
  VerbsDevice(const VerbsLibrary& library, EventLoop& loop, VerbsRail rail);
  bool start(Error& error);
  bool find_gid(Error& error);
  bool refuse(Error& error, const std::string& why) const;
  void on_event();

  const VerbsLibrary& library_;
  EventLoop& loop_;
  VerbsRail rail_;
  std::string name_;
  ibv::Context* context_ = nullptr;
  ibv::Pd* pd_ = nullptr;
  ibv::DeviceAttr limits_{};
  ibv::PortAttr attr_{};
  ibv::GidEntry gid_{};
  size_t most_bytes_ = 0;
  Watch watch_;
  std::atomic<int> last_event_{-1};
  std::atomic<int64_t> last_event_at_{0};
};

// Memory of this process that the device may read, or peers may write, with its key. A forked child does not have it: else the kernel would give the parent
// copies of pages that the device goes on using the originals of.
class VerbsMemory {
 public:
  VerbsMemory() = default;
  ~VerbsMemory();
  VerbsMemory(const VerbsMemory&) = delete;
  VerbsMemory& operator=(const VerbsMemory&) = delete;
  // Once. `what` names it in the error. `budget` may be null, for small things.
  bool take(const VerbsDevice& device, size_t bytes, int access, MemoryBudget* budget, const char* what, Error& error);
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  uint32_t lkey() const { return mr_->lkey; }
  uint32_t rkey() const { return mr_->rkey; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
  ibv::Mr* mr_ = nullptr;
  const VerbsLibrary* library_ = nullptr;
  MemoryBudget* budget_ = nullptr;
};

}  // namespace ringcomm
