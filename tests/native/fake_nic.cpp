// What the NIC of fake_verbs.h does: one request after the other, of each queue pair in its order.
#include <endian.h>
#include <unistd.h>

#include <algorithm>

#include "fake_fabric.h"

namespace ringcomm::test::fake {

Fabric::Fabric() {
  for (int i = 0; i < 2; ++i) {
    Card& c = cards[i];
    std::snprintf(c.name, sizeof c.name, "fake%d", i);
    c.node_type = 1, c.transport_type = ibv::kTransportIb;
    const uint8_t v4[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, static_cast<uint8_t>(i + 1)};
    c.gids[0].raw[0] = 0xfe, c.gids[0].raw[1] = 0x80, c.gids[0].raw[15] = static_cast<uint8_t>(i + 1);
    std::memcpy(c.gids[1].raw, v4, 16);
    std::memcpy(c.gids[2].raw, v4, 16);
  }
  nic = std::thread([this] { run(); });
}

Fabric::~Fabric() {
  {
    const std::lock_guard<std::mutex> hold(mutex);
    stop = true;
  }
  news.notify_all();
  nic.join();
}

Fabric& fabric() {
  static Fabric one;
  return one;
}

void Fabric::run() {
  std::unique_lock<std::mutex> hold(mutex);
  while (!stop)
    if (held || !step(hold)) news.wait(hold);
}

// Queue pairs in turns, one request each.
bool Fabric::step(std::unique_lock<std::mutex>& hold) {
  auto it = queue_pairs.upper_bound(last_served);
  for (size_t i = 0; i < queue_pairs.size(); ++i, ++it) {
    if (it == queue_pairs.end()) it = queue_pairs.begin();
    Qp& qp = *it->second;
    if (qp.todo.empty()) continue;
    last_served = it->first;
    auto next = qp.todo.begin();
    if (overtake && next->wr.opcode == ibv::kRdmaWrite && !next->pieces.empty() && !next->overtaken) {
      const auto last =
          std::find_if(next, qp.todo.end(), [](const Request& r) { return r.wr.opcode == ibv::kRdmaWriteWithImm; });
      if (last == qp.todo.end()) continue;  // not posted yet
      for (; next != last; ++next) next->overtaken = true;
    }
    Request request = std::move(*next);
    qp.todo.erase(next);
    busy = true;
    const int status = transfer(hold, qp, request);
    busy = false;
    idle.notify_all();
    complete(qp, request, status);
    return true;
  }
  return false;
}

Qp* Fabric::other_end(const Qp& from) {
  const auto it = queue_pairs.find(from.with.dest_qp_num);
  if (it == queue_pairs.end()) return nullptr;
  Qp& to = *it->second;
  const Card& card = *static_cast<Context*>(to.context)->card;
  const bool there = to.with.qp_state >= ibv::kReadyToReceive && to.with.qp_state != ibv::kQpError &&
                     to.with.dest_qp_num == from.qp_num && to.with.rq_psn == from.with.sq_psn && card.up;
  const auto& gid = from.with.ah_attr.grh.dgid;
  const bool found = std::memcmp(gid.raw, card.gids[1].raw, 16) == 0 || std::memcmp(gid.raw, card.gids[0].raw, 16) == 0;
  return there && from.with.ah_attr.is_global && found ? &to : nullptr;
}

int Fabric::transfer(std::unique_lock<std::mutex>& hold, Qp& from, Request& r) {
  auto& context = *static_cast<Context*>(from.context);
  if (!context.card->up) return 2;  // LOC_QP_OP_ERR, as soft RoCE has it
  if (auto& next = context.card->fail_next; !next.empty()) {
    const int status = next.front();
    next.pop_front();
    return status;
  }
  size_t bytes = 0;
  for (const ibv::Sge& piece : r.pieces) bytes += piece.length;
  if (bytes > context.most_bytes) return 1;  // LOC_LEN_ERR
  Qp* const to = other_end(from);
  if (to == nullptr) return ibv::kWcRetryExceeded;
  if (!r.inlined.empty()) r.pieces = {{reinterpret_cast<uintptr_t>(r.inlined.data()), static_cast<uint32_t>(bytes), 0}};
  for (const ibv::Sge& piece : r.pieces) {
    if (!r.inlined.empty()) break;
    const auto mine = regions.find(piece.lkey);
    if (mine == regions.end() || !mine->second->covers(piece.addr, piece.length)) return ibv::kWcLocalProtection;
  }
  const bool with_immediate = r.wr.opcode == ibv::kRdmaWriteWithImm;
  if (with_immediate && to->receives == 0) return ibv::kWcRnrRetryExceeded;
  if (bytes > 0) {
    const auto theirs = regions.find(r.wr.wr.rdma.rkey);
    if (theirs == regions.end() || theirs->second->spoilt || !(theirs->second->access & ibv::kAccessRemoteWrite) ||
        theirs->second->pd != to->pd || !theirs->second->covers(r.wr.wr.rdma.remote_addr, bytes)) {
      break_down(*to);
      return ibv::kWcRemoteAccess;
    }
    const auto& shown = *static_cast<Cq*>(to->recv_cq);
    const uint64_t pushed = shown.pushed;
    hold.unlock();
    // Whenever the reader now reads, nothing orders that and this: no luck is needed for ThreadSanitizer to see it.
    while (r.overtaken && shown.taken.load(std::memory_order_acquire) < pushed) std::this_thread::yield();
    auto* to_memory = reinterpret_cast<char*>(r.wr.wr.rdma.remote_addr);
    for (const ibv::Sge& piece : r.pieces) {
      std::memcpy(to_memory, reinterpret_cast<const void*>(piece.addr), piece.length);
      to_memory += piece.length;
    }
    hold.lock();
  }
  ++counts.requests, counts.bytes += bytes, counts.carrying += bytes > 0, counts.with_immediate += with_immediate;
  counts.signaled += (r.wr.send_flags & ibv::kSendSignaled) != 0;
  counts.largest = std::max<uint64_t>(counts.largest, bytes);
  if (with_immediate) receive(*to, r.wr.imm_data, static_cast<uint32_t>(bytes));
  return ibv::kWcSuccess;
}

void Fabric::receive(Qp& qp, uint32_t immediate, uint32_t bytes) {
  --qp.receives;
  ibv::Wc wc{};
  wc.opcode = ibv::kWcRecvRdmaWithImm;
  wc.imm_data = immediate;
  wc.byte_len = bytes;
  push(*static_cast<Cq*>(qp.recv_cq), {wc, &qp, 0});
}

void Fabric::complete(Qp& qp, const Request& r, int status) {
  if (status == ibv::kWcSuccess && !(r.wr.send_flags & ibv::kSendSignaled)) return;
  ibv::Wc wc{};
  wc.wr_id = r.wr.wr_id;
  wc.status = status;
  wc.opcode = 1;  // IBV_WC_RDMA_WRITE
  wc.vendor_err = status == ibv::kWcSuccess ? 0 : 129;
  push(*static_cast<Cq*>(qp.send_cq), {wc, &qp, r.number});
  if (status != ibv::kWcSuccess) break_down(qp);
}

// The error state: everything posted comes back.
void Fabric::break_down(Qp& qp) {
  if (qp.with.qp_state == ibv::kQpError) return;
  qp.state = qp.with.qp_state = ibv::kQpError;
  ibv::Wc wc{};
  wc.status = ibv::kWcFlushed;
  for (const Request& r : qp.todo) {
    wc.wr_id = r.wr.wr_id;
    push(*static_cast<Cq*>(qp.send_cq), {wc, &qp, r.number});
  }
  qp.todo.clear();
  for (; qp.receives > 0; --qp.receives) {
    wc.opcode = ibv::kWcRecv;
    push(*static_cast<Cq*>(qp.recv_cq), {wc, &qp, 0});
  }
}

void Fabric::push(Cq& cq, const Completion& completion) {
  CHECK(cq.done.size() < static_cast<size_t>(cq.cqe));  // a real one would be lost
  cq.done.push_back(completion);
  ++cq.pushed;
  if (!cq.armed) return;
  cq.armed = false;
  ++counts.events;
  auto& channel = *static_cast<Channel*>(cq.channel);
  channel.events.push_back(&cq);
  CHECK(write(channel.write_end, "e", 1) == 1);
}

}  // namespace ringcomm::test::fake
