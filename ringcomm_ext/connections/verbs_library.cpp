#include "connections/verbs_library.h"

#include <dlfcn.h>

#include <iterator>

namespace ringcomm {
namespace {

struct Opened {
  VerbsLibrary table{};
  std::string why_not;
};

// Never closed: providers leave threads and fork handlers behind.
Opened open_library() {
  Opened found;
  void* const library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    found.why_not = std::string("libibverbs.so.1 cannot be opened (") + (text ? text : "no reason given") + ")";
    return found;
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && found.why_not.empty())
      found.why_not = std::string("libibverbs.so.1 has no ") + name + ": it is too old";
  };
  VerbsLibrary& t = found.table;
  find(t.get_device_list, "ibv_get_device_list");
  find(t.free_device_list, "ibv_free_device_list");
  find(t.open_device, "ibv_open_device");
  find(t.close_device, "ibv_close_device");
  find(t.query_device, "ibv_query_device");
  find(t.query_port, "ibv_query_port");
  find(t.query_gid_ex, "_ibv_query_gid_ex");
  find(t.get_async_event, "ibv_get_async_event");
  find(t.ack_async_event, "ibv_ack_async_event");
  find(t.alloc_pd, "ibv_alloc_pd");
  find(t.dealloc_pd, "ibv_dealloc_pd");
  find(t.reg_mr, "ibv_reg_mr");
  find(t.dereg_mr, "ibv_dereg_mr");
  find(t.create_comp_channel, "ibv_create_comp_channel");
  find(t.destroy_comp_channel, "ibv_destroy_comp_channel");
  find(t.create_cq, "ibv_create_cq");
  find(t.destroy_cq, "ibv_destroy_cq");
  find(t.get_cq_event, "ibv_get_cq_event");
  find(t.ack_cq_events, "ibv_ack_cq_events");
  find(t.create_qp, "ibv_create_qp");
  find(t.modify_qp, "ibv_modify_qp");
  find(t.destroy_qp, "ibv_destroy_qp");
  find(t.fork_init, "ibv_fork_init");
  // Before anything else of it. What it keeps for its queues must not be shared with a child; a refusal matters to nobody who does not fork.
  if (found.why_not.empty()) t.fork_init();
  return found;
}

const char* const kStatus[] = {"SUCCESS",
                               "LOC_LEN_ERR",
                               "LOC_QP_OP_ERR",
                               "LOC_EEC_OP_ERR",
                               "LOC_PROT_ERR",
                               "WR_FLUSH_ERR",
                               "MW_BIND_ERR",
                               "BAD_RESP_ERR",
                               "LOC_ACCESS_ERR",
                               "REM_INV_REQ_ERR",
                               "REM_ACCESS_ERR",
                               "REM_OP_ERR",
                               "RETRY_EXC_ERR",
                               "RNR_RETRY_EXC_ERR",
                               "LOC_RDD_VIOL_ERR",
                               "REM_INV_RD_REQ_ERR",
                               "REM_ABORT_ERR",
                               "INV_EECN_ERR",
                               "INV_EEC_STATE_ERR",
                               "FATAL_ERR",
                               "RESP_TIMEOUT_ERR",
                               "GENERAL_ERR",
                               "TM_ERR",
                               "TM_RNDV_INCOMPLETE"};
const char* const kEvents[] = {"CQ_ERR",
                               "QP_FATAL",
                               "QP_REQ_ERR",
                               "QP_ACCESS_ERR",
                               "COMM_EST",
                               "SQ_DRAINED",
                               "PATH_MIG",
                               "PATH_MIG_ERR",
                               "DEVICE_FATAL",
                               "PORT_ACTIVE",
                               "PORT_ERR",
                               "LID_CHANGE",
                               "PKEY_CHANGE",
                               "SM_CHANGE",
                               "SRQ_ERR",
                               "SRQ_LIMIT_REACHED",
                               "QP_LAST_WQE_REACHED",
                               "CLIENT_REREGISTER",
                               "GID_CHANGE",
                               "WQ_FATAL"};

template <size_t n>
const char* named(const char* const (&names)[n], int number) {
  return number >= 0 && static_cast<size_t>(number) < n ? names[number] : "unknown";
}

// What the common ones most often mean, for who has never seen them.
const char* meaning(int status) {
  switch (status) {
    case ibv::kWcRetryExceeded:
      return ": no acknowledgement came in all tries";
    case ibv::kWcRemoteAccess:
      return ": the peer's device refused the access to its memory";
    case ibv::kWcFlushed:
      return ": the queue pair had failed before";
    case ibv::kWcRnrRetryExceeded:
      return ": the peer had no receive posted";
    default:
      return "";
  }
}

}  // namespace

const VerbsLibrary* verbs_library(std::string& why_not) {
  static const Opened opened = open_library();
  why_not = opened.why_not;
  return why_not.empty() ? &opened.table : nullptr;
}

std::string completion_text(int status, uint32_t vendor_error) {
  return std::string(named(kStatus, status)) + " (" + std::to_string(status) + ", vendor error " +
         std::to_string(vendor_error) + ")" + meaning(status);
}

std::string event_text(int event) { return std::string(named(kEvents, event)) + " (" + std::to_string(event) + ")"; }

}  // namespace ringcomm
