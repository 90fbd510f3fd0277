#include "c10d/backend.h"

#include <utility>

#include "c10d/describe.h"
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
    return;
  }
  // Reached with Python's lock held, so nothing here waits: an orderly end is shutdown()'s.
  if (!left_.exchange(true)) group_->leave(0, false);
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
  if (!forked() && !left_.load()) group_->abort("abort() was called");
}

void Backend::shutdown() {
  if (forked() || left_.exchange(true)) return;
  group_->leave(now_ns() + kLeaveNs, true);
  if (Engine* engine = process_engine()) engine->remove(group_.get());
  if (hooked_.load()) hook_->close();
  found_ = nullptr;
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
  TORCH_CHECK_VALUE(options.device().is_cpu(), "ringcomm: allocate_tensor: device is ", options.device(),
                    "; this build handles CPU tensors");
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

// ---------------------------------------------------------------------------------------------------------------- all_gather

void Backend::add_all_gather(Launch& l, const std::vector<at::Tensor>& outputs, const at::Tensor& input) const {
  check_tensor(input, "all_gather", "input");
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == getSize(), "ringcomm: all_gather: the output list has ",
                    outputs.size(), " tensors, the group ", getSize(), " ranks");
  TORCH_CHECK_VALUE(outputs[getRank()].numel() == input.numel(), "ringcomm: all_gather: the input has ", input.numel(),
                    " elements, but output ", getRank(), " (this rank's) has ", outputs[getRank()].numel());
  Call call = make_call(Collective::all_gather, input);
  const at::Tensor in = flat_input(input);
  call.in = {chunk_of(in)};
  l.keep.push_back(in);
  for (const at::Tensor& o : outputs) {
    check_same_type(o, input, "all_gather", "an output");
    l.keep.push_back(l.staged.flat(o, false, "all_gather"));
    call.out.push_back(chunk_of(l.keep.back()));
  }
  call.bytes = bytes_of(call.out, call.element);
  call.uniform = equal_sizes(call.out);
  l.calls.push_back(std::move(call));
}

void Backend::add_all_gather(Launch& l, const at::Tensor& output, const at::Tensor& input) const {
  check_tensor(input, "all_gather_into_tensor", "input");
  check_same_type(output, input, "all_gather_into_tensor", "output");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(),
                    "ringcomm: all_gather_into_tensor: the output must have ", getSize(), " x ", input.numel(),
                    " elements (ranks x input), it has ", output.numel());
  Call call = make_call(Collective::all_gather, input);
  const at::Tensor in = flat_input(input), out = l.staged.flat(output, false, "all_gather_into_tensor");
  call.in = {chunk_of(in)};
  call.out = parts(out, getSize());
  call.bytes = out.nbytes();
  l.keep.insert(l.keep.end(), {in, out});
  l.calls.push_back(std::move(call));
}

intrusive_ptr<Work> Backend::allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                       const c10d::AllgatherOptions& opts) {
  only(inputs, "all_gather", "inputs");
  TORCH_CHECK_VALUE(outputs.size() == 1, "ringcomm: all_gather: one list of outputs is expected, got ", outputs.size());
  Launch l = prepare(OpType::ALLGATHER, "ringcomm:all_gather", inputs, outputs[0], opts.timeout, opts.asyncOp);
  add_all_gather(l, outputs[0], inputs[0]);
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& opts) {
  Launch l = prepare(OpType::_ALLGATHER_BASE, "ringcomm:all_gather", {input}, {output}, opts.timeout, opts.asyncOp);
  add_all_gather(l, output, input);
  return go(std::move(l));
}

// outputs[rank][tensor]
intrusive_ptr<Work> Backend::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                 std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(static_cast<int>(outputs.size()) == getSize(), "ringcomm: all_gather_coalesced: ", outputs.size(),
                    " output lists for ", getSize(), " ranks");
  std::vector<at::Tensor> flat_outputs;
  for (const auto& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "ringcomm: all_gather_coalesced: an output list has ", list.size(),
                      " tensors, the input list ", inputs.size());
    flat_outputs.insert(flat_outputs.end(), list.begin(), list.end());
  }
  Launch l = prepare(OpType::ALLGATHER_COALESCED, "ringcomm:all_gather", inputs, std::move(flat_outputs), opts.timeout,
                     opts.asyncOp);
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<at::Tensor> column;
    for (const auto& list : outputs) column.push_back(list[i]);
    add_all_gather(l, column, inputs[i]);
  }
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                             std::vector<at::Tensor>& inputs,
                                                             const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ringcomm: all_gather_into_tensor_coalesced: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  Launch l = prepare(OpType::COALESCED, "ringcomm:all_gather", inputs, outputs, opts.timeout, opts.asyncOp);
  for (size_t i = 0; i < inputs.size(); ++i) add_all_gather(l, outputs[i], inputs[i]);
  return go(std::move(l));
}

// ---------------------------------------------------------------------------------------------------------------- reduce_scatter

void Backend::add_reduce_scatter(Launch& l, const at::Tensor& given, const std::vector<at::Tensor>& inputs,
                                 const c10d::ReduceOp& op) const {
  check_tensor(given, "reduce_scatter", "output");
  TORCH_CHECK_VALUE(static_cast<int>(inputs.size()) == getSize(), "ringcomm: reduce_scatter: the input list has ",
                    inputs.size(), " tensors, the group ", getSize(), " ranks");
  TORCH_CHECK_VALUE(inputs[getRank()].numel() == given.numel(), "ringcomm: reduce_scatter: the output has ",
                    given.numel(), " elements, but input ", getRank(), " (this rank's) has ",
                    inputs[getRank()].numel());
  const at::Tensor out = real_view(l.staged.flat(given, false, "reduce_scatter"), op);
  Call call = make_call(Collective::reduce_scatter, out, reduce_op_of(op, given, "reduce_scatter"));
  for (const at::Tensor& i : inputs) {
    check_same_type(i, given, "reduce_scatter", "an input");
    l.keep.push_back(premultiply(op, real_view(flat_input(i), op)));
    call.in.push_back(chunk_of(l.keep.back()));
  }
  call.out = {chunk_of(out)};
  l.keep.push_back(out);
  call.bytes = bytes_of(call.in, call.element);
  call.uniform = equal_sizes(call.in);
  l.calls.push_back(std::move(call));
}

void Backend::add_reduce_scatter(Launch& l, const at::Tensor& given, const at::Tensor& given_input,
                                 const c10d::ReduceOp& op) const {
  check_tensor(given, "reduce_scatter_tensor", "output");
  check_same_type(given_input, given, "reduce_scatter_tensor", "input");
  TORCH_CHECK_VALUE(given_input.numel() == given.numel() * getSize(),
                    "ringcomm: reduce_scatter_tensor: the input must have ", getSize(), " x ", given.numel(),
                    " elements (ranks x output), it has ", given_input.numel());
  const at::Tensor out = real_view(l.staged.flat(given, false, "reduce_scatter_tensor"), op);
  Call call = make_call(Collective::reduce_scatter, out, reduce_op_of(op, given, "reduce_scatter_tensor"));
  const at::Tensor in = premultiply(op, real_view(flat_input(given_input), op));
  call.in = parts(in, getSize());
  call.out = {chunk_of(out)};
  call.bytes = in.nbytes();
  l.keep.insert(l.keep.end(), {in, out});
  l.calls.push_back(std::move(call));
}

intrusive_ptr<Work> Backend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                            std::vector<std::vector<at::Tensor>>& inputs,
                                            const c10d::ReduceScatterOptions& opts) {
  only(outputs, "reduce_scatter", "outputs");
  TORCH_CHECK_VALUE(inputs.size() == 1, "ringcomm: reduce_scatter: one list of inputs is expected, got ",
                    inputs.size());
  Launch l = prepare(OpType::REDUCE_SCATTER, "ringcomm:reduce_scatter", inputs[0], outputs, opts.timeout, opts.asyncOp);
  add_reduce_scatter(l, outputs[0], inputs[0], opts.reduceOp);
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& opts) {
  Launch l =
      prepare(OpType::_REDUCE_SCATTER_BASE, "ringcomm:reduce_scatter", {input}, {output}, opts.timeout, opts.asyncOp);
  add_reduce_scatter(l, output, input, opts.reduceOp);
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                             std::vector<at::Tensor>& inputs,
                                                             const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "ringcomm: reduce_scatter_tensor_coalesced: ", outputs.size(),
                    " outputs for ", inputs.size(), " inputs");
  Launch l = prepare(OpType::COALESCED, "ringcomm:reduce_scatter", inputs, outputs, opts.timeout, opts.asyncOp);
  for (size_t i = 0; i < inputs.size(); ++i) add_reduce_scatter(l, outputs[i], inputs[i], opts.reduceOp);
  return go(std::move(l));
}

}  // namespace ringcomm
