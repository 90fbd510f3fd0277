// The table of fake_verbs.h, and what the tests say to it.
#include "fake_verbs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "fake_fabric.h"

namespace ringcomm::test {
namespace fake {
namespace {

using Lock = std::lock_guard<std::mutex>;

void make_pipe(int& read_end, int& write_end) {
  int ends[2];
  CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
  read_end = ends[0], write_end = ends[1];
}

int poll_cq(ibv::Cq* queue, int most, ibv::Wc* wc) {
  const Lock hold(fabric().mutex);
  auto& cq = *static_cast<Cq*>(queue);
  int n = 0;
  for (; n < most && !cq.done.empty(); ++n) {
    const Completion& c = cq.done.front();
    wc[n] = c.wc;
    if (c.frees > 0) c.qp->freed = c.frees;
    cq.done.pop_front();
    cq.taken.fetch_add(1, std::memory_order_release);
  }
  return n;
}

int req_notify_cq(ibv::Cq* queue, int) {
  const Lock hold(fabric().mutex);
  static_cast<Cq*>(queue)->armed = true;
  return 0;
}

int post_send(ibv::Qp* pair, ibv::SendWr* wr, ibv::SendWr**) {
  const Lock hold(fabric().mutex);
  auto& qp = *static_cast<Qp*>(pair);
  for (; wr != nullptr; wr = wr->next) {
    if (qp.with.qp_state != ibv::kReadyToSend && qp.with.qp_state != ibv::kQpError) return EINVAL;
    if (qp.posted - qp.freed >= qp.made.cap.max_send_wr) return ENOMEM;
    if (wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > qp.made.cap.max_send_sge) return EINVAL;
    Request r{*wr, {wr->sg_list, wr->sg_list + wr->num_sge}, {}, ++qp.posted};
    if (wr->send_flags & ibv::kSendInline) {
      for (const ibv::Sge& piece : r.pieces) r.inlined.append(reinterpret_cast<const char*>(piece.addr), piece.length);
      if (r.inlined.size() > qp.made.cap.max_inline_data) return EINVAL;
    }
    if (qp.with.qp_state == ibv::kQpError)
      fabric().complete(qp, r, ibv::kWcFlushed);
    else
      qp.todo.push_back(std::move(r));
  }
  fabric().news.notify_all();
  return 0;
}

int post_recv(ibv::Qp* pair, ibv::RecvWr* wr, ibv::RecvWr**) {
  const Lock hold(fabric().mutex);
  auto& qp = *static_cast<Qp*>(pair);
  for (; wr != nullptr; wr = wr->next) {
    if (qp.with.qp_state == ibv::kReset) return EINVAL;
    if (qp.receives >= qp.made.cap.max_recv_wr) return ENOMEM;
    ++qp.receives;
  }
  return 0;
}

ibv::Device** get_device_list(int* count) {
  auto** list = new ibv::Device*[3]{&fabric().cards[0], &fabric().cards[1], nullptr};
  *count = 2;
  return list;
}
void free_device_list(ibv::Device** list) { delete[] list; }

ibv::Context* open_device(ibv::Device* device) {
  const Lock hold(fabric().mutex);
  auto* c = new Context{};
  c->device = device;
  c->card = static_cast<Card*>(device);
  c->ops.poll_cq = poll_cq, c->ops.req_notify_cq = req_notify_cq;
  c->ops.post_send = post_send, c->ops.post_recv = post_recv;
  c->cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  make_pipe(c->async_fd, c->event_write);
  c->most_bytes = fabric().most_bytes;
  c->card->open.push_back(c);
  return c;
}
int close_device(ibv::Context* context) {
  const Lock hold(fabric().mutex);
  auto* c = static_cast<Context*>(context);
  std::erase(c->card->open, c);
  close(c->cmd_fd), close(c->async_fd), close(c->event_write);
  delete c;
  return 0;
}
int query_device(ibv::Context*, ibv::DeviceAttr* attr) {
  attr->max_qp_wr = 1 << 20;
  attr->phys_port_cnt = 1;
  return 0;
}
int query_port(ibv::Context* context, uint8_t port, ibv::PortAttr* attr) {
  if (port != 1) return EINVAL;
  const Lock hold(fabric().mutex);
  attr->state = static_cast<Context*>(context)->card->up ? ibv::kPortActive : 1;
  attr->max_mtu = attr->active_mtu = 3;
  attr->gid_tbl_len = 8;
  attr->max_msg_sz = static_cast<Context*>(context)->most_bytes;
  attr->link_layer = ibv::kLinkEthernet;
  return 0;
}
int query_gid_ex(ibv::Context* context, uint32_t, uint32_t index, ibv::GidEntry* entry, uint32_t, size_t) {
  if (index > 2) return ENODATA;
  *entry = {static_cast<Context*>(context)->card->gids[index], index, 1, index == 2 ? ibv::kGidRoceV1 : ibv::kGidRoceV2,
            0};
  return 0;
}
int get_async_event(ibv::Context* context, ibv::AsyncEvent* event) {
  char one;
  if (read(context->async_fd, &one, 1) != 1) return -1;
  const Lock hold(fabric().mutex);
  auto& events = static_cast<Context*>(context)->events;
  *event = events.front();
  events.pop_front();
  return 0;
}
void ack_async_event(ibv::AsyncEvent*) {}

ibv::Pd* alloc_pd(ibv::Context* context) { return new ibv::Pd{context, 1}; }
int dealloc_pd(ibv::Pd* pd) {
  delete pd;
  return 0;
}

ibv::Mr* reg_mr(ibv::Pd* pd, void* addr, size_t length, int access) {
  const Lock hold(fabric().mutex);
  if (length > fabric().most_registered) {
    errno = ENOMEM;
    return nullptr;
  }
  auto* mr = new Mr{};
  mr->context = pd->context, mr->pd = pd, mr->addr = addr, mr->length = length, mr->access = access;
  mr->lkey = mr->rkey = fabric().next_key++;
  mr->spoilt = fabric().spoil;
  fabric().regions[mr->lkey] = mr;
  return mr;
}
int dereg_mr(ibv::Mr* mr) {
  std::unique_lock<std::mutex> hold(fabric().mutex);
  fabric().idle.wait(hold, [] { return !fabric().busy; });
  fabric().regions.erase(mr->lkey);
  delete static_cast<Mr*>(mr);
  return 0;
}

ibv::CompChannel* create_comp_channel(ibv::Context* context) {
  auto* c = new Channel{};
  c->context = context;
  make_pipe(c->fd, c->write_end);
  return c;
}
int destroy_comp_channel(ibv::CompChannel* channel) {
  close(channel->fd), close(static_cast<Channel*>(channel)->write_end);
  delete static_cast<Channel*>(channel);
  return 0;
}
ibv::Cq* create_cq(ibv::Context* context, int entries, void* user, ibv::CompChannel* channel, int) {
  auto* cq = new Cq{};
  cq->context = context, cq->channel = channel, cq->cq_context = user, cq->cqe = entries;
  return cq;
}
int destroy_cq(ibv::Cq* cq) {
  const Lock hold(fabric().mutex);
  std::erase(static_cast<Channel*>(cq->channel)->events, cq);
  delete static_cast<Cq*>(cq);
  return 0;
}
int get_cq_event(ibv::CompChannel* channel, ibv::Cq** cq, void** user) {
  char one;
  if (read(channel->fd, &one, 1) != 1) return -1;
  const Lock hold(fabric().mutex);
  auto& events = static_cast<Channel*>(channel)->events;
  *cq = events.front(), *user = (*cq)->cq_context;
  events.pop_front();
  return 0;
}
void ack_cq_events(ibv::Cq*, unsigned) {}

ibv::Qp* create_qp(ibv::Pd* pd, ibv::QpInitAttr* attr) {
  const Lock hold(fabric().mutex);
  if (attr->cap.max_inline_data > fabric().most_inline) {
    errno = EINVAL;
    return nullptr;
  }
  auto* qp = new Qp{};
  qp->context = pd->context, qp->pd = pd, qp->send_cq = attr->send_cq, qp->recv_cq = attr->recv_cq;
  qp->qp_num = fabric().next_qp++;
  qp->made = *attr;
  fabric().queue_pairs[qp->qp_num] = qp;
  return qp;
}
int modify_qp(ibv::Qp* pair, ibv::QpAttr* attr, int mask) {
  const Lock hold(fabric().mutex);
  auto& qp = *static_cast<Qp*>(pair);
  if (attr->qp_state != qp.with.qp_state + 1) return EINVAL;
  const int needs[] = {
      0, ibv::kMaskPkeyIndex | ibv::kMaskPort | ibv::kMaskAccess,
      ibv::kMaskAv | ibv::kMaskPathMtu | ibv::kMaskDestQpn | ibv::kMaskRqPsn | ibv::kMaskMaxDestRdAtomic |
          ibv::kMaskMinRnrTimer,
      ibv::kMaskTimeout | ibv::kMaskRetryCount | ibv::kMaskRnrRetry | ibv::kMaskSqPsn | ibv::kMaskMaxRdAtomic};
  if (mask != (needs[attr->qp_state] | ibv::kMaskState)) return EINVAL;
  const ibv::QpAttr before = qp.with;
  qp.with = *attr;
  if (attr->qp_state == ibv::kReadyToSend) {  // what was said before stays
    qp.with.ah_attr = before.ah_attr, qp.with.dest_qp_num = before.dest_qp_num, qp.with.rq_psn = before.rq_psn;
    if (attr->retry_cnt > 6) return EINVAL;  // "for ever" with soft RoCE
  }
  qp.state = attr->qp_state;
  return 0;
}
int destroy_qp(ibv::Qp* pair) {
  std::unique_lock<std::mutex> hold(fabric().mutex);
  fabric().idle.wait(hold, [] { return !fabric().busy; });
  fabric().queue_pairs.erase(pair->qp_num);
  auto& qp = *static_cast<Qp*>(pair);
  std::erase_if(static_cast<Cq*>(qp.send_cq)->done, [&](const Completion& c) { return c.qp == &qp; });
  delete &qp;
  return 0;
}
int fork_init() { return 0; }

const VerbsLibrary kTable{get_device_list, free_device_list, open_device,     close_device,        query_device,
                          query_port,      query_gid_ex,     get_async_event, ack_async_event,     alloc_pd,
                          dealloc_pd,      reg_mr,           dereg_mr,        create_comp_channel, destroy_comp_channel,
                          create_cq,       destroy_cq,       get_cq_event,    ack_cq_events,       create_qp,
                          modify_qp,       destroy_qp,       fork_init};

void report(Card& card, int type) {
  for (Context* c : card.open) {
    ibv::AsyncEvent e{};
    e.element.port_num = 1, e.event_type = type;
    c->events.push_back(e);
    CHECK(write(c->event_write, "e", 1) == 1);
  }
}

}  // namespace
}  // namespace fake

using fake::fabric;

const VerbsLibrary& fake_verbs() {
  fabric();
  return fake::kTable;
}

void fake_reset() {
  const fake::Lock hold(fabric().mutex);
  fake::Fabric& f = fabric();
  f.held = f.overtake = f.spoil = false;
  f.most_bytes = 8u << 20, f.most_inline = 512, f.most_registered = SIZE_MAX;
  for (fake::Card& c : f.cards) c.up = true, c.fail_next.clear();
  f.counts = {};
}
void fake_hold(bool held) {
  const fake::Lock hold(fabric().mutex);
  fabric().held = held;
  fabric().news.notify_all();
}
void fake_link(const std::string& device, bool up) {
  const fake::Lock hold(fabric().mutex);
  fake::Card& card = fabric().cards[fake::in_card(device)];
  card.up = up;
  fake::report(card, up ? ibv::kEventPortActive : ibv::kEventPortErr);
}
void fake_fail_next(const std::string& device, int status) {
  const fake::Lock hold(fabric().mutex);
  fabric().cards[fake::in_card(device)].fail_next.push_back(status);
}
void fake_overtake(bool on) {
  const fake::Lock hold(fabric().mutex);
  fabric().overtake = on;
}
void fake_most_bytes(uint32_t bytes) {
  const fake::Lock hold(fabric().mutex);
  fabric().most_bytes = bytes;
}
void fake_most_inline(uint32_t bytes) {
  const fake::Lock hold(fabric().mutex);
  fabric().most_inline = bytes;
}
void fake_spoil_keys(bool on) {
  const fake::Lock hold(fabric().mutex);
  fabric().spoil = on;
}
void fake_most_registered(size_t limit) {
  const fake::Lock hold(fabric().mutex);
  fabric().most_registered = limit;
}
FakeCounts fake_counts() {
  const fake::Lock hold(fabric().mutex);
  FakeCounts counts = fabric().counts;
  counts.queue_pairs = static_cast<int>(fabric().queue_pairs.size());
  counts.regions = static_cast<int>(fabric().regions.size());
  return counts;
}

}  // namespace ringcomm::test
