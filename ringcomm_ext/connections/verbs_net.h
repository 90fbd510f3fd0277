// This process's RDMA: the ports of devices that its connections use, and connections whose owner is gone while something is still under way. One per
// process, beside its TcpPort. docs/rdma.md.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "connections/tcp_port.h"
#include "connections/verbs_queue.h"

namespace ringcomm {

struct VerbsOptions {
  std::vector<VerbsRail> rails;  // channel c uses number c mod size; at least one
  VerbsTraits traits;
};

// One end of a connection, as far as its orderly end goes.
class VerbsEnd {
 public:
  virtual ~VerbsEnd() = default;
  // Whether all that was published, or flushed, has reached the peer, or cannot any more. Does what it can for it. Any thread.
  virtual bool over() = 0;
};

class VerbsNet {
 public:
  // Null and `error` where a device cannot be used. Library and port must outlive it.
  static std::unique_ptr<VerbsNet> open(const VerbsLibrary& library, TcpPort& port, const VerbsOptions& options,
                                        Error& error);
  ~VerbsNet();
  VerbsNet(const VerbsNet&) = delete;
  VerbsNet& operator=(const VerbsNet&) = delete;

  VerbsDevice& device(int channel) const { return *devices_[static_cast<size_t>(channel) % devices_.size()]; }
  int rails() const { return static_cast<int>(devices_.size()); }
  const VerbsTraits& traits() const { return traits_; }
  TcpPort& port() const { return port_; }
  // Keeps it until it is over, for the port's linger_ns at most; TcpPort::settle() waits for it too.
  void linger(std::shared_ptr<VerbsEnd> end);

 private:
  struct Lingering {
    std::shared_ptr<VerbsEnd> end;
    int64_t until_ns;
  };
  VerbsNet(TcpPort& port, const VerbsTraits& traits) : port_(port), traits_(traits) {}
  void schedule();
  void look();
  bool all_over();

  TcpPort& port_;
  const VerbsTraits traits_;
  std::vector<std::unique_ptr<VerbsDevice>> devices_;
  uint64_t registered_ = 0;
  std::mutex mutex_;
  std::vector<Lingering> lingering_;
  EventLoop::TimerId timer_ = 0;
  bool looking_ = false, stopped_ = false;
};

}  // namespace ringcomm
