// libibverbs, opened at run time: one table of functions, or why there is none. No other file knows how it is found, and a test puts a provider of its own
// behind the same table.
#pragma once

#include <string>

#include "connections/verbs_abi.h"

namespace ringcomm {

// The exported functions in use, as the library has them. Work is posted and completions are polled through `context->ops`.
struct VerbsLibrary {
  ibv::Device** (*get_device_list)(int* count);
  void (*free_device_list)(ibv::Device** list);
  ibv::Context* (*open_device)(ibv::Device* device);
  int (*close_device)(ibv::Context* context);
  int (*query_device)(ibv::Context* context, ibv::DeviceAttr* attr);
  int (*query_port)(ibv::Context* context, uint8_t port, ibv::PortAttr* attr);
  int (*query_gid_ex)(ibv::Context* context, uint32_t port, uint32_t index, ibv::GidEntry* entry, uint32_t flags,
                      size_t entry_size);
  int (*get_async_event)(ibv::Context* context, ibv::AsyncEvent* event);
  void (*ack_async_event)(ibv::AsyncEvent* event);
  ibv::Pd* (*alloc_pd)(ibv::Context* context);
  int (*dealloc_pd)(ibv::Pd* pd);
  ibv::Mr* (*reg_mr)(ibv::Pd* pd, void* addr, size_t length, int access);
  int (*dereg_mr)(ibv::Mr* mr);
  ibv::CompChannel* (*create_comp_channel)(ibv::Context* context);
  int (*destroy_comp_channel)(ibv::CompChannel* channel);
  ibv::Cq* (*create_cq)(ibv::Context* context, int entries, void* cq_context, ibv::CompChannel* channel, int vector);
  int (*destroy_cq)(ibv::Cq* cq);
  int (*get_cq_event)(ibv::CompChannel* channel, ibv::Cq** cq, void** cq_context);
  void (*ack_cq_events)(ibv::Cq* cq, unsigned events);
  ibv::Qp* (*create_qp)(ibv::Pd* pd, ibv::QpInitAttr* attr);
  int (*modify_qp)(ibv::Qp* qp, ibv::QpAttr* attr, int mask);
  int (*destroy_qp)(ibv::Qp* qp);
  int (*fork_init)();
};

// This process's, looked for once. Null and `why_not` where it cannot be used.
const VerbsLibrary* verbs_library(std::string& why_not);

// "RETRY_EXC_ERR (12)", and so on; any number.
std::string completion_text(int status, uint32_t vendor_error);
std::string event_text(int event);

}  // namespace ringcomm
