// Our declarations of libibverbs' interface (connections/verbs_abi.h) against the library's own header, where that is installed (libibverbs-dev).
#include "connections/verbs_abi.h"

#include <cstdio>

#if __has_include(<infiniband/verbs.h>)
#include <infiniband/verbs.h>
#undef ibv_query_port
#undef ibv_reg_mr

using namespace ringcomm;

#define SAME_SIZE(ours, theirs) static_assert(sizeof(ibv::ours) == sizeof(theirs), #ours)
#define SAME_PLACE(ours, field, theirs, their_field)                                            \
  static_assert(offsetof(ibv::ours, field) == offsetof(theirs, their_field), #ours "." #field); \
  static_assert(sizeof(ibv::ours::field) == sizeof(theirs::their_field), #ours "." #field)
#define SAME(ours, theirs, field) SAME_PLACE(ours, field, theirs, field)

// What the caller makes must be whole.
SAME_SIZE(Gid, ibv_gid);
SAME_SIZE(DeviceAttr, ibv_device_attr);
SAME_SIZE(GidEntry, ibv_gid_entry);
SAME_SIZE(AsyncEvent, ibv_async_event);
SAME_SIZE(QpInitAttr, ibv_qp_init_attr);
SAME_SIZE(QpAttr, ibv_qp_attr);
SAME_SIZE(Sge, ibv_sge);
SAME_SIZE(SendWr, ibv_send_wr);
SAME_SIZE(RecvWr, ibv_recv_wr);
SAME_SIZE(Wc, ibv_wc);
static_assert(sizeof(ibv::PortAttr) >= sizeof(ibv_port_attr));

SAME(Device, ibv_device, name);
SAME(Device, ibv_device, transport_type);
SAME(Context, ibv_context, device);
SAME(Context, ibv_context, cmd_fd);
SAME(Context, ibv_context, async_fd);
SAME(ContextOps, ibv_context_ops, poll_cq);
SAME(ContextOps, ibv_context_ops, req_notify_cq);
SAME(ContextOps, ibv_context_ops, post_send);
SAME(ContextOps, ibv_context_ops, post_recv);
SAME_SIZE(ContextOps, ibv_context_ops);
SAME(Mr, ibv_mr, lkey);
SAME(Mr, ibv_mr, rkey);
SAME(CompChannel, ibv_comp_channel, fd);
SAME(Cq, ibv_cq, cq_context);
SAME(Cq, ibv_cq, cqe);
SAME(Qp, ibv_qp, qp_num);
SAME(DeviceAttr, ibv_device_attr, max_qp_wr);
SAME(DeviceAttr, ibv_device_attr, phys_port_cnt);
SAME(PortAttr, ibv_port_attr, state);
SAME(PortAttr, ibv_port_attr, active_mtu);
SAME(PortAttr, ibv_port_attr, gid_tbl_len);
SAME(PortAttr, ibv_port_attr, max_msg_sz);
SAME(PortAttr, ibv_port_attr, lid);
SAME(PortAttr, ibv_port_attr, link_layer);
SAME(GidEntry, ibv_gid_entry, gid_index);
SAME(GidEntry, ibv_gid_entry, gid_type);
SAME(AsyncEvent, ibv_async_event, event_type);
SAME(QpInitAttr, ibv_qp_init_attr, cap);
SAME(QpInitAttr, ibv_qp_init_attr, qp_type);
SAME(QpInitAttr, ibv_qp_init_attr, sq_sig_all);
SAME(QpAttr, ibv_qp_attr, path_mtu);
SAME(QpAttr, ibv_qp_attr, rq_psn);
SAME(QpAttr, ibv_qp_attr, sq_psn);
SAME(QpAttr, ibv_qp_attr, dest_qp_num);
SAME(QpAttr, ibv_qp_attr, qp_access_flags);
SAME(QpAttr, ibv_qp_attr, ah_attr);
SAME(QpAttr, ibv_qp_attr, pkey_index);
SAME(QpAttr, ibv_qp_attr, max_rd_atomic);
SAME(QpAttr, ibv_qp_attr, max_dest_rd_atomic);
SAME(QpAttr, ibv_qp_attr, min_rnr_timer);
SAME(QpAttr, ibv_qp_attr, port_num);
SAME(QpAttr, ibv_qp_attr, timeout);
SAME(QpAttr, ibv_qp_attr, retry_cnt);
SAME(QpAttr, ibv_qp_attr, rnr_retry);
SAME(AhAttr, ibv_ah_attr, grh);
SAME(AhAttr, ibv_ah_attr, dlid);
SAME(AhAttr, ibv_ah_attr, sl);
SAME(AhAttr, ibv_ah_attr, is_global);
SAME(AhAttr, ibv_ah_attr, port_num);
SAME(GlobalRoute, ibv_global_route, sgid_index);
SAME(GlobalRoute, ibv_global_route, hop_limit);
SAME(GlobalRoute, ibv_global_route, traffic_class);
SAME(SendWr, ibv_send_wr, sg_list);
SAME(SendWr, ibv_send_wr, num_sge);
SAME(SendWr, ibv_send_wr, opcode);
SAME(SendWr, ibv_send_wr, send_flags);
SAME(SendWr, ibv_send_wr, imm_data);
static_assert(offsetof(ibv::SendWr, wr) + 8 == offsetof(ibv_send_wr, wr.rdma.rkey));
static_assert(offsetof(ibv::SendWr, wr) == offsetof(ibv_send_wr, wr.rdma.remote_addr));
SAME(Wc, ibv_wc, wr_id);
SAME(Wc, ibv_wc, status);
SAME(Wc, ibv_wc, opcode);
SAME(Wc, ibv_wc, vendor_err);
SAME(Wc, ibv_wc, byte_len);
SAME(Wc, ibv_wc, imm_data);

static_assert(ibv::kTransportIb == IBV_TRANSPORT_IB && ibv::kPortActive == IBV_PORT_ACTIVE);
static_assert(ibv::kLinkInfiniBand == IBV_LINK_LAYER_INFINIBAND && ibv::kLinkEthernet == IBV_LINK_LAYER_ETHERNET);
static_assert(ibv::kGidIb == IBV_GID_TYPE_IB && ibv::kGidRoceV1 == IBV_GID_TYPE_ROCE_V1 &&
              ibv::kGidRoceV2 == IBV_GID_TYPE_ROCE_V2);
static_assert(ibv::kEventCqErr == IBV_EVENT_CQ_ERR && ibv::kEventDeviceFatal == IBV_EVENT_DEVICE_FATAL &&
              ibv::kEventPortActive == IBV_EVENT_PORT_ACTIVE && ibv::kEventPortErr == IBV_EVENT_PORT_ERR);
static_assert(ibv::kAccessLocalWrite == IBV_ACCESS_LOCAL_WRITE && ibv::kAccessRemoteWrite == IBV_ACCESS_REMOTE_WRITE);
static_assert(ibv::kQpReliable == IBV_QPT_RC && ibv::kInit == IBV_QPS_INIT && ibv::kReadyToReceive == IBV_QPS_RTR &&
              ibv::kReadyToSend == IBV_QPS_RTS && ibv::kQpError == IBV_QPS_ERR);
static_assert(ibv::kMaskState == IBV_QP_STATE && ibv::kMaskAccess == IBV_QP_ACCESS_FLAGS &&
              ibv::kMaskPkeyIndex == IBV_QP_PKEY_INDEX && ibv::kMaskPort == IBV_QP_PORT && ibv::kMaskAv == IBV_QP_AV &&
              ibv::kMaskPathMtu == IBV_QP_PATH_MTU && ibv::kMaskTimeout == IBV_QP_TIMEOUT &&
              ibv::kMaskRetryCount == IBV_QP_RETRY_CNT && ibv::kMaskRnrRetry == IBV_QP_RNR_RETRY &&
              ibv::kMaskRqPsn == IBV_QP_RQ_PSN && ibv::kMaskMaxRdAtomic == IBV_QP_MAX_QP_RD_ATOMIC &&
              ibv::kMaskMinRnrTimer == IBV_QP_MIN_RNR_TIMER && ibv::kMaskSqPsn == IBV_QP_SQ_PSN &&
              ibv::kMaskMaxDestRdAtomic == IBV_QP_MAX_DEST_RD_ATOMIC && ibv::kMaskDestQpn == IBV_QP_DEST_QPN);
static_assert(ibv::kRdmaWrite == IBV_WR_RDMA_WRITE && ibv::kRdmaWriteWithImm == IBV_WR_RDMA_WRITE_WITH_IMM);
static_assert(ibv::kSendSignaled == IBV_SEND_SIGNALED && ibv::kSendInline == IBV_SEND_INLINE);
static_assert(ibv::kWcSuccess == IBV_WC_SUCCESS && ibv::kWcLocalProtection == IBV_WC_LOC_PROT_ERR &&
              ibv::kWcFlushed == IBV_WC_WR_FLUSH_ERR && ibv::kWcRemoteAccess == IBV_WC_REM_ACCESS_ERR &&
              ibv::kWcRetryExceeded == IBV_WC_RETRY_EXC_ERR && ibv::kWcRnrRetryExceeded == IBV_WC_RNR_RETRY_EXC_ERR);
static_assert(ibv::kWcRecv == IBV_WC_RECV && ibv::kWcRecvRdmaWithImm == IBV_WC_RECV_RDMA_WITH_IMM);

int main() {
  std::puts("verbs_abi_test: compared with <infiniband/verbs.h>");
  return 0;
}
#else
int main() {
  std::puts("verbs_abi_test: skipped: <infiniband/verbs.h> is not installed (libibverbs-dev)");
  return 0;
}
#endif
