// What this project uses of the binary interface of libibverbs.so.1 (IBVERBS_1.1), declared by ourselves, so that building needs no header of it. Names of
// fields are the library's. tests/native/verbs_abi_test.cpp compares sizes and offsets with <infiniband/verbs.h> where that is installed.
//
// Objects that the library makes (Context, Qp, Cq, ...) are declared as far as they are read; there is more behind. What the caller makes (attributes, work
// requests, completions) is whole.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringcomm::ibv {

union Gid {
  uint8_t raw[16];
  uint64_t aligned[2];  // the library's has 64-bit halves
};

struct Device;
struct Context;
struct Cq;
struct Qp;
struct Wc;
struct SendWr;
struct RecvWr;

struct Device {
  void* ops[2];
  int node_type;
  int transport_type;
  char name[64];
  char dev_name[64];
};
inline constexpr int kTransportIb = 0;  // InfiniBand and RoCE; iWARP and others have other numbers

// Filled by the provider; the rest goes through exported functions.
struct ContextOps {
  void* before_poll[11];
  int (*poll_cq)(Cq* cq, int entries, Wc* wc);
  int (*req_notify_cq)(Cq* cq, int solicited_only);
  void* before_post[12];
  int (*post_send)(Qp* qp, SendWr* wr, SendWr** bad);
  int (*post_recv)(Qp* qp, RecvWr* wr, RecvWr** bad);
  void* after[5];
};
struct Context {
  Device* device;
  ContextOps ops;
  int cmd_fd;
  int async_fd;
  int num_comp_vectors;
};

struct Pd {
  Context* context;
  uint32_t handle;
};
struct Mr {
  Context* context;
  Pd* pd;
  void* addr;
  size_t length;
  uint32_t handle, lkey, rkey;
};
struct CompChannel {
  Context* context;
  int fd;
  int refcnt;
};
struct Cq {
  Context* context;
  CompChannel* channel;
  void* cq_context;
  uint32_t handle;
  int cqe;
};
struct Qp {
  Context* context;
  void* qp_context;
  Pd* pd;
  Cq *send_cq, *recv_cq;
  void* srq;
  uint32_t handle, qp_num;
  int state, qp_type;
};

struct DeviceAttr {
  char fw_ver[64];
  uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
  uint32_t vendor_id, vendor_part_id, hw_ver;
  int max_qp, max_qp_wr;
  unsigned device_cap_flags;
  int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
      max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
      max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq,
      max_srq_wr, max_srq_sge;
  uint16_t max_pkeys;
  uint8_t local_ca_ack_delay, phys_port_cnt;
};

inline constexpr int kPortActive = 4;
inline constexpr uint8_t kLinkInfiniBand = 1, kLinkEthernet = 2;
struct PortAttr {
  int state, max_mtu, active_mtu, gid_tbl_len;
  uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
  uint16_t pkey_tbl_len, lid, sm_lid;
  uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
      flags;
  // The exported function does not write what follows; newer libraries' inline one does.
  uint16_t port_cap_flags2;
  uint32_t active_speed_ex;
};

inline constexpr uint32_t kGidIb = 0, kGidRoceV1 = 1, kGidRoceV2 = 2;
struct GidEntry {
  Gid gid;
  uint32_t gid_index, port_num, gid_type, ndev_ifindex;
};

struct AsyncEvent {
  union {
    Cq* cq;
    Qp* qp;
    int port_num;
  } element;
  int event_type;
};
inline constexpr int kEventCqErr = 0, kEventDeviceFatal = 8, kEventPortActive = 9, kEventPortErr = 10;

inline constexpr int kAccessLocalWrite = 1, kAccessRemoteWrite = 2;

struct QpCap {
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};
inline constexpr int kQpReliable = 2;  // IBV_QPT_RC
struct QpInitAttr {
  void* qp_context;
  Cq *send_cq, *recv_cq;
  void* srq;
  QpCap cap;
  int qp_type;
  int sq_sig_all;
};

struct GlobalRoute {
  Gid dgid;
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class;
};
struct AhAttr {
  GlobalRoute grh;
  uint16_t dlid;
  uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};
enum QpState : int { kReset = 0, kInit = 1, kReadyToReceive = 2, kReadyToSend = 3, kQpError = 6 };
struct QpAttr {
  int qp_state, cur_qp_state, path_mtu, path_mig_state;
  uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
  unsigned qp_access_flags;
  QpCap cap;
  AhAttr ah_attr, alt_ah_attr;
  uint16_t pkey_index, alt_pkey_index;
  uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout,
      retry_cnt, rnr_retry, alt_port_num, alt_timeout;
  uint32_t rate_limit;
};
enum QpAttrMask : int {
  kMaskState = 1 << 0,
  kMaskAccess = 1 << 3,
  kMaskPkeyIndex = 1 << 4,
  kMaskPort = 1 << 5,
  kMaskAv = 1 << 7,
  kMaskPathMtu = 1 << 8,
  kMaskTimeout = 1 << 9,
  kMaskRetryCount = 1 << 10,
  kMaskRnrRetry = 1 << 11,
  kMaskRqPsn = 1 << 12,
  kMaskMaxRdAtomic = 1 << 13,
  kMaskMinRnrTimer = 1 << 15,
  kMaskSqPsn = 1 << 16,
  kMaskMaxDestRdAtomic = 1 << 17,
  kMaskDestQpn = 1 << 20,
};

struct Sge {
  uint64_t addr;
  uint32_t length, lkey;
};
enum WrOpcode : int { kRdmaWrite = 0, kRdmaWriteWithImm = 1 };
inline constexpr unsigned kSendSignaled = 2, kSendInline = 8;
struct SendWr {
  uint64_t wr_id;
  SendWr* next;
  Sge* sg_list;
  int num_sge;
  int opcode;
  unsigned send_flags;
  uint32_t imm_data;  // big-endian
  union {
    struct {
      uint64_t remote_addr;
      uint32_t rkey;
    } rdma;
    uint64_t others[4];
  } wr;
  uint32_t remote_srqn;
  uint64_t memory_window[6];
};
struct RecvWr {
  uint64_t wr_id;
  RecvWr* next;
  Sge* sg_list;
  int num_sge;
};

inline constexpr int kWcSuccess = 0, kWcLocalProtection = 4, kWcFlushed = 5, kWcRemoteAccess = 10,
                     kWcRetryExceeded = 12, kWcRnrRetryExceeded = 13;
inline constexpr int kWcRecv = 1 << 7, kWcRecvRdmaWithImm = kWcRecv + 1;
struct Wc {
  uint64_t wr_id;
  int status;
  int opcode;  // good where status is success
  uint32_t vendor_err;
  uint32_t byte_len;
  uint32_t imm_data;  // big-endian
  uint32_t qp_num;
  uint32_t src_qp;
  unsigned wc_flags;
  uint16_t pkey_index, slid;
  uint8_t sl, dlid_path_bits;
};

}  // namespace ringcomm::ibv
