#include "connections/verbs_queue.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/random_bytes.h"

namespace ringcomm {
namespace {

// Credits see to it that a receive is always there, so this is no way of waiting: with a count of 7 ("for ever") a mistake of ours would hang.
constexpr uint8_t kRnrRetries = 6;
constexpr uint8_t kRnrTimer = 12;  // 0.64 ms
constexpr uint8_t kHops = 255;
constexpr uint32_t kPieces = 2;  // of memory in a send: a payload and its head

bool same_subnet(const ibv::Gid& a, const ibv::Gid& b) { return a.aligned[0] == b.aligned[0]; }

}  // namespace

std::unique_ptr<VerbsQueue> VerbsQueue::open(VerbsDevice& device, const Shape& shape, const VerbsTraits& traits,
                                             Error& error) {
  std::unique_ptr<VerbsQueue> queue(new VerbsQueue(device, traits));
  if (!queue->start(shape, error)) return nullptr;
  return queue;
}

VerbsQueue::~VerbsQueue() {
  const VerbsLibrary& library = device_.library();
  device_.loop().remove(watch_);
  if (qp_) library.destroy_qp(qp_);
  if (cq_) library.destroy_cq(cq_);
  if (channel_) library.destroy_comp_channel(channel_);
}

bool VerbsQueue::refuse(const char* what, int number, Error& error) const {
  error.cause = Cause::connection;
  std::snprintf(error.text, sizeof error.text, "ringcomm: %s with the RDMA device %s failed: %s%s", what,
                device_.name().c_str(), std::strerror(number), device_.news().c_str());
  return false;
}

bool VerbsQueue::start(const Shape& shape, Error& error) {
  const VerbsLibrary& library = device_.library();
  if (shape.sends > device_.most_requests()) {
    error.cause = Cause::connection;
    std::snprintf(error.text, sizeof error.text,
                  "ringcomm: a connection needs %u work requests at once, the RDMA device %s has %u a queue: lower "
                  "memory.slots or memory.slot",
                  shape.sends, device_.name().c_str(), device_.most_requests());
    return false;
  }
  channel_ = library.create_comp_channel(device_.context());
  if (channel_ == nullptr) return refuse("making a completion channel", errno, error);
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  cq_ = library.create_cq(device_.context(), static_cast<int>(shape.sends + shape.receives), nullptr, channel_, 0);
  if (cq_ == nullptr) return refuse("making a completion queue", errno, error);
  ibv::QpInitAttr init{};
  // Devices differ in how much may be inline, and say so by refusing; what is not goes out of registered memory.
  for (uint32_t wanted : {shape.inline_bytes, 0u}) {
    init = {};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {shape.sends, shape.receives, kPieces, 1, wanted};
    init.qp_type = ibv::kQpReliable;
    qp_ = library.create_qp(device_.pd(), &init);
    if (qp_ != nullptr) break;
  }
  if (qp_ == nullptr) return refuse("making a queue pair", errno, error);
  inline_bytes_ = std::min(init.cap.max_inline_data, shape.inline_bytes);
  uint8_t psn[4];
  fill_random(psn, sizeof psn);
  psn_ = static_cast<uint32_t>(psn[0] | psn[1] << 8 | psn[2] << 16);
  ibv::QpAttr attr{};
  attr.qp_state = ibv::kInit;
  attr.pkey_index = traits_.pkey_index;
  attr.port_num = static_cast<uint8_t>(device_.port());
  attr.qp_access_flags = ibv::kAccessRemoteWrite;
  if (!modify(attr, ibv::kMaskState | ibv::kMaskPkeyIndex | ibv::kMaskPort | ibv::kMaskAccess, "initialised", error))
    return false;
  if (const int failed = post_receives(shape.receives)) return refuse("posting receives", failed, error);
  return true;
}

bool VerbsQueue::modify(ibv::QpAttr& attr, int mask, const char* to, Error& error) {
  const int failed = device_.library().modify_qp(qp_, &attr, mask);
  if (failed == 0) return true;
  char what[64];
  std::snprintf(what, sizeof what, "making a queue pair %s", to);
  return refuse(what, failed, error);
}

VerbsAddress VerbsQueue::address() const {
  VerbsAddress a;
  a.qp = qp_->qp_num;
  a.psn = psn_;
  a.lid = device_.lid();
  a.mtu = static_cast<uint8_t>(device_.mtu());
  a.ethernet = device_.ethernet();
  a.gid = device_.gid().gid;
  return a;
}

bool VerbsQueue::connect(const VerbsAddress& peer, Error& error) {
  if (static_cast<bool>(peer.ethernet) != device_.ethernet()) {
    error.cause = Cause::connection;
    std::snprintf(error.text, sizeof error.text, "ringcomm: the RDMA device %s is of %s, the peer's of %s",
                  device_.name().c_str(), device_.ethernet() ? "Ethernet" : "InfiniBand",
                  peer.ethernet ? "Ethernet" : "InfiniBand");
    return false;
  }
  ibv::QpAttr attr{};
  attr.qp_state = ibv::kReadyToReceive;
  attr.path_mtu = std::min<int>(peer.mtu, device_.mtu());
  attr.dest_qp_num = peer.qp;
  attr.rq_psn = peer.psn;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = kRnrTimer;
  ibv::AhAttr& way = attr.ah_attr;
  way.dlid = peer.lid;
  way.sl = traits_.service_level;
  way.port_num = static_cast<uint8_t>(device_.port());
  // Within an InfiniBand subnet the LID leads there; everything else needs the global route.
  way.is_global = device_.ethernet() || !same_subnet(peer.gid, device_.gid().gid);
  if (way.is_global) {
    way.grh.dgid = peer.gid;
    way.grh.sgid_index = static_cast<uint8_t>(device_.gid_index());
    way.grh.hop_limit = kHops;
    way.grh.traffic_class = traits_.traffic_class;
  }
  if (!modify(attr,
              ibv::kMaskState | ibv::kMaskAv | ibv::kMaskPathMtu | ibv::kMaskDestQpn | ibv::kMaskRqPsn |
                  ibv::kMaskMaxDestRdAtomic | ibv::kMaskMinRnrTimer,
              "ready to receive", error))
    return false;
  attr = {};
  attr.qp_state = ibv::kReadyToSend;
  attr.timeout = traits_.timeout;
  attr.retry_cnt = traits_.retry_count;
  attr.rnr_retry = kRnrRetries;
  attr.sq_psn = psn_;
  attr.max_rd_atomic = 1;
  return modify(attr,
                ibv::kMaskState | ibv::kMaskTimeout | ibv::kMaskRetryCount | ibv::kMaskRnrRetry | ibv::kMaskSqPsn |
                    ibv::kMaskMaxRdAtomic,
                "ready to send", error);
}

// Without memory: what comes is written where its sender says, and its immediate value stands in the completion.
int VerbsQueue::post_receives(uint32_t count) {
  constexpr uint32_t kAtOnce = 32;
  ibv::RecvWr requests[kAtOnce] = {};
  while (count > 0) {
    const uint32_t n = std::min(count, kAtOnce);
    for (uint32_t i = 0; i < n; ++i) requests[i].next = i + 1 < n ? &requests[i + 1] : nullptr;
    ibv::RecvWr* bad;
    if (const int failed = qp_->context->ops.post_recv(qp_, requests, &bad)) return failed;
    count -= n;
  }
  return 0;
}

// ---------------------------------------------------------------------------------------------------------------- waking

bool VerbsQueue::watch(std::function<void()> woken) {
  woken_ = std::move(woken);
  watch_ = device_.loop().add(channel_->fd, EPOLLIN, [this](uint32_t) { on_event(); });
  return static_cast<bool>(watch_);
}

void VerbsQueue::arm() {
  if (!armed_.exchange(true, std::memory_order_seq_cst)) cq_->context->ops.req_notify_cq(cq_, 0);
}

// Taken back before anybody is woken: who looks after that arms again.
void VerbsQueue::on_event() {
  ibv::Cq* cq;
  void* context;
  bool any = false;
  while (device_.library().get_cq_event(channel_, &cq, &context) == 0) {
    device_.library().ack_cq_events(cq, 1);
    any = true;
  }
  if (!any) return;
  armed_.store(false, std::memory_order_seq_cst);
  woken_();
}

}  // namespace ringcomm
