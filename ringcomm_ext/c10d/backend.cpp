#include "c10d/backend.h"

#include <utility>

#include "c10d/describe.h"
#include "c10d/devices.h"
#include "c10d/overlap.h"
#include "c10d/registered.h"
#include "engine/process.h"

namespace ringcomm {

using c10::intrusive_ptr;
using c10d::OpType;
using c10d::Work;

// ---------------------------------------------------------------------------------------------------------------- life

Backend::Backend(std::unique_ptr<GroupSeed> seed, CommunicatorPtr group, std::chrono::milliseconds timeout, Found found)
    : c10d::Backend(group->spec().rank, group->spec().ranks),
      seed_(std::move(seed)),
      group_(std::move(group)),
      found_(std::move(found)),
      options_(c10::make_intrusive<BackendOptions>("ringcomm", timeout)),
      timeout_ms_(timeout.count()) {
  setGroupUid(group_->spec().name);
}

Backend::~Backend() {
  if (forked()) {  // the parent's engine: nothing of it may be touched here
    (void)seed_.release();
    (void)new CommunicatorPtr(std::move(group_));
    (void)new std::shared_ptr<DeviceSide>(std::move(side_));
    return;
  }
  // Reached with Python's lock held, so nothing here waits: an orderly end is shutdown()'s.
  if (!left_.exchange(true)) {
    if (devices_leave_later()) return;
    group_->leave(0, false);
  }
  if (Engine* engine = process_engine()) engine->remove(group_.get());
}

Communicator& Backend::group() const {
  TORCH_CHECK(!forked(), "ringcomm: this process was forked after the group '", group_->spec().name,
              "' was made; a group belongs to the process that made it. Start workers before init_process_group, or "
              "with the spawn method");
  TORCH_CHECK_WITH(DistBackendError, !left_.load(), "ringcomm: the group '", group_->spec().name,
                   "' was destroyed on this rank");
  return *group_;
}

void Backend::abort() {
  if (!forked() && !gone_.load()) group_->abort("abort() was called");
}

void Backend::shutdown() {
  if (forked() || left_.exchange(true)) return;
  const std::exception_ptr interrupted = close_devices();  // abort() may end what that waits for
  gone_.store(true);
  group_->leave(now_ns() + kLeaveNs, true);
  if (Engine* engine = process_engine()) engine->remove(group_.get());
  if (hooked_.load()) hook_->close();
  found_ = nullptr;
  if (interrupted) std::rethrow_exception(interrupted);
}

c10d::ErrorType Backend::getError() {
  Error error;
  if (forked() || left_.load() || !group_->failed(error)) return c10d::ErrorType::SUCCESS;
  if (error.cause == Cause::timeout) return c10d::ErrorType::TIMEOUT;
  return error.cause == Cause::peer_died || error.cause == Cause::peer_left ? c10d::ErrorType::REMOTE_ERROR
                                                                            : c10d::ErrorType::COMM_ERROR;
}

std::shared_ptr<c10::Allocator> Backend::getMemAllocator() {
  return {&registered_allocator(), [](c10::Allocator*) {}};
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(size >= 0, "ringcomm: allocate_tensor: size is ", size, "; it must be 0 or more");
  if (takes_device(options.device().type())) return at::empty({size}, options);  // nothing is registered there yet
  TORCH_CHECK_VALUE(options.device().is_cpu(), "ringcomm: allocate_tensor: device is ", options.device(),
                    ", whose tensors are not handled");
  return registered_empty({size}, c10::typeMetaToScalarType(options.dtype()));
}

// ---------------------------------------------------------------------------------------------------------------- launching

int64_t Backend::deadline(std::chrono::milliseconds timeout) const {
  const int64_t ms = timeout.count() > 0 ? timeout.count() : timeout_ms_.load();
  return after_ms(ms);
}

Launch Backend::prepare(OpType type, const char* title, std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                        std::chrono::milliseconds timeout, bool async) const {
  Launch l{type, title, std::move(inputs), std::move(outputs), timeout, async, {}, {}, {}, {}, {}};
  return l;
}

// The group's own description is known after the group was made, so it is introduced to those who watch with its first call.
void Backend::introduce() {
  std::call_once(introduced_, [this] {
    profiled_ = profiled_group(group_->spec(), getGroupDesc());
    group_->enter_record(getGroupDesc());
  });
}

intrusive_ptr<Work> Backend::go(Launch&& l) {
  Communicator& group = this->group();
  introduce();
  if (!profiler_listens())
    l.title = nullptr;  // torch would put the range together before it finds that nobody wants it
  if (!l.title) return issue(std::move(l));
  const int root = l.calls[0].root;
  const ProfiledCall call{profiled_name(l),
                          static_cast<int64_t>(group.sequence()) + 1,
                          false,
                          root < 0 ? getRank() : root,
                          l.async,
                          l.in_splits,
                          l.out_splits};
  return in_profiler_range(profiled_, call, l.inputs, l.outputs, [&] { return issue(std::move(l)); });
}

intrusive_ptr<Work> Backend::issue(Launch&& l) {
  if (const c10::Device device = device_of(l); !device.is_cpu()) return issue_on_device(std::move(l), device);
  Communicator& group = this->group();
  auto work = c10::make_intrusive<RingWork>(getRank(), l.type, l.title, l.inputs, group_, std::move(l.outputs));
  for (Call& call : l.calls) {
    if (group.travels_wide(call))
      l.widened.widen(call, getRank(), l.keep);  // a copy, so nothing overlaps
    else
      separate(call, getRank(), l.keep);
  }
  const auto keep = std::make_shared<std::vector<at::Tensor>>(std::move(l.keep));
  std::vector<RequestPtr> requests;
  for (size_t i = 0; i < l.calls.size(); ++i) {
    Call& call = l.calls[i];
    FlightShapes shapes;
    if (collective_record()) {
      shapes = shapes_of(call, i, l.calls.size(), l.inputs, work->outputs());
      call.shapes = &shapes;
    }
    call.deadline_ns = deadline(l.timeout);
    call.caller_waits = !l.async;
    call.keep = keep;
    std::string error;
    RequestPtr request = group.start(call, error);
    TORCH_CHECK(request != nullptr, "ringcomm: ", error);
    requests.push_back(std::move(request));
  }
  std::function<void()> finalize = std::move(l.finish);
  if (l.widened.any() || l.staged.needs_copy_back())
    finalize = [keep, widened = std::move(l.widened), staged = std::move(l.staged), then = std::move(finalize)] {
      widened.narrow();  // into the stand-ins, where there are any
      staged.copy_back();
      if (then) then();
    };
  return begin(std::move(work), std::move(requests), std::move(finalize));
}

intrusive_ptr<Work> Backend::begin(intrusive_ptr<RingWork> work, std::vector<RequestPtr> requests,
                                   std::function<void()> finalize) {
  work->begin(std::move(requests), std::move(finalize), hooked_.load(std::memory_order_acquire) ? hook_ : nullptr);
  if (blocks_.any()) blocks_.add(work);
  return work;
}

void Backend::check_root(int64_t root, const char* what) const {
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "ringcomm: ", what, ": root rank ", root,
                    " is not in the group (0 to ", getSize() - 1, ")");
}

// ---------------------------------------------------------------------------------------------------------------- one tensor

void Backend::add_all_reduce(Launch& l, const at::Tensor& given, const c10d::ReduceOp& op) const {
  check_tensor(given, "all_reduce", "tensor");
  const at::Tensor out = real_view(l.staged.flat(given, true, "all_reduce"), op);
  Call call = make_call(Collective::all_reduce, out, reduce_op_of(op, given, "all_reduce"));
  const at::Tensor in = premultiply(op, out);
  call.in = {chunk_of(in)};
  call.out = {chunk_of(out)};
  call.bytes = out.nbytes();
  l.keep.insert(l.keep.end(), {in, out});
  l.calls.push_back(std::move(call));
}

intrusive_ptr<Work> Backend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].layout() == at::kSparse)
    return sparse_all_reduce(tensors[0], opts);
  only(tensors, "all_reduce", "tensors");
  Launch l = prepare(OpType::ALLREDUCE, "ringcomm:all_reduce", tensors, tensors, opts.timeout, opts.asyncOp);
  add_all_reduce(l, tensors[0], opts.reduceOp);
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                 const c10d::AllreduceCoalescedOptions& opts) {
  TORCH_CHECK_VALUE(!tensors.empty(), "ringcomm: all_reduce_coalesced: the list of tensors is empty");
  Launch l = prepare(OpType::ALLREDUCE_COALESCED, "ringcomm:all_reduce", tensors, tensors, opts.timeout, opts.asyncOp);
  for (const at::Tensor& t : tensors) add_all_reduce(l, t, opts.reduceOp);
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = only(tensors, "broadcast", "tensors");
  check_root(opts.rootRank, "broadcast");
  Launch l = prepare(OpType::BROADCAST, "ringcomm:broadcast", tensors, tensors, opts.timeout, opts.asyncOp);
  const bool root = opts.rootRank == getRank();
  const at::Tensor flat = root ? flat_input(tensor) : l.staged.flat(tensor, false, "broadcast");
  Call call = make_call(Collective::broadcast, tensor, ReduceOp::none, opts.rootRank);
  call.in = call.out = {chunk_of(flat)};
  call.bytes = flat.nbytes();
  l.keep = {flat};
  l.calls.push_back(std::move(call));
  return go(std::move(l));
}

// Only the root's tensor changes.
intrusive_ptr<Work> Backend::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& opts) {
  check_root(opts.rootRank, "reduce");
  const at::Tensor& tensor = only(tensors, "reduce", "tensors");
  Launch l = prepare(OpType::REDUCE, "ringcomm:reduce", tensors, tensors, opts.timeout, opts.asyncOp);
  const bool root = opts.rootRank == getRank();
  const at::Tensor out = real_view(root ? l.staged.flat(tensor, true, "reduce") : flat_input(tensor), opts.reduceOp);
  Call call = make_call(Collective::reduce, out, reduce_op_of(opts.reduceOp, tensor, "reduce"), opts.rootRank);
  const at::Tensor in = premultiply(opts.reduceOp, out);
  call.in = {chunk_of(in)};
  if (root) call.out = {chunk_of(out)};
  call.bytes = out.nbytes();
  l.keep = {in, out};
  l.calls.push_back(std::move(call));
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::barrier(const c10d::BarrierOptions& opts) {
  Launch l = prepare(OpType::BARRIER, "ringcomm:barrier", {}, {}, opts.timeout, opts.asyncOp);
  Call call;
  call.collective = Collective::barrier;
  call.dtype = DType::uint8;
  call.op = ReduceOp::bor;
  call.in = call.out = {Chunk{barrier_byte_, 1}};
  call.bytes = 1;
  l.calls.push_back(std::move(call));
  return go(std::move(l));
}

}  // namespace ringcomm
