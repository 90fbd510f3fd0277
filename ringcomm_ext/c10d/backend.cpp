#include "c10d/backend.h"

#include <utility>

#include "c10d/overlap.h"
#include "engine/process.h"

namespace ringcomm {

using c10::intrusive_ptr;
using c10d::OpType;
using c10d::Work;

// ---------------------------------------------------------------------------------------------------------------- life

Backend::Backend(std::unique_ptr<GroupSeed> seed, CommunicatorPtr group, std::chrono::milliseconds timeout)
    : c10d::Backend(group->spec().rank, group->spec().ranks),
      seed_(std::move(seed)),
      group_(std::move(group)),
      options_(c10::make_intrusive<Options>("ringcomm", timeout)),
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
}

c10d::ErrorType Backend::getError() {
  Error error;
  if (forked() || left_.load() || !group_->failed(error)) return c10d::ErrorType::SUCCESS;
  if (error.cause == Cause::timeout) return c10d::ErrorType::TIMEOUT;
  return error.cause == Cause::peer_died || error.cause == Cause::peer_left ? c10d::ErrorType::REMOTE_ERROR
                                                                            : c10d::ErrorType::COMM_ERROR;
}

// ---------------------------------------------------------------------------------------------------------------- launching

int64_t Backend::deadline(std::chrono::milliseconds timeout) const {
  const int64_t ms = timeout.count() > 0 ? timeout.count() : timeout_ms_.load();
  return after_ms(ms);
}

Launch Backend::prepare(OpType type, const char* title, std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs,
                        std::chrono::milliseconds timeout, bool async) const {
  Launch l{type, title, std::move(inputs), std::move(outputs), timeout, async, {}, {}, {}, {}};
  return l;
}

intrusive_ptr<Work> Backend::go(Launch&& l) {
  Communicator& group = this->group();
  auto work = c10::make_intrusive<RingWork>(getRank(), l.type, l.title, l.inputs, group_, std::move(l.outputs));
  for (Call& call : l.calls) separate(call, getRank(), l.keep);
  const auto keep = std::make_shared<std::vector<at::Tensor>>(std::move(l.keep));
  std::vector<RequestPtr> requests;
  for (Call& call : l.calls) {
    call.deadline_ns = deadline(l.timeout);
    call.caller_waits = !l.async;
    call.keep = keep;
    std::string error;
    RequestPtr request = group.start(call, error);
    TORCH_CHECK(request != nullptr, "ringcomm: ", error);
    requests.push_back(std::move(request));
  }
  std::function<void()> finalize = std::move(l.finish);
  if (l.staged.needs_copy_back())
    finalize = [staged = std::move(l.staged), then = std::move(finalize)] {
      staged.copy_back();
      if (then) then();
    };
  work->begin(std::move(requests), std::move(finalize));
  return work;
}

void Backend::check_root(int64_t root, const char* what) const {
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "ringcomm: ", what, ": root rank ", root,
                    " is not in the group (0 to ", getSize() - 1, ")");
}

namespace {

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* what, const char* argument) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "ringcomm: ", what, ": ", argument, " must be one tensor, got ",
                    tensors.size());
  check_tensor(tensors[0], what, argument);
  return tensors[0];
}

uint64_t bytes_of(const std::vector<Chunk>& chunks, size_t element) {
  uint64_t bytes = 0;
  for (const Chunk& c : chunks) bytes += c.count * element;
  return bytes;
}

Call make_call(Collective collective, const at::Tensor& like, ReduceOp op = ReduceOp::none, int64_t root = -1) {
  Call call;
  call.collective = collective;
  call.dtype = dtype_of(like.scalar_type());
  call.element = like.element_size();
  call.op = op;
  call.root = static_cast<int>(root);
  return call;
}

// Equal parts of one flat tensor.
std::vector<Chunk> parts(const at::Tensor& flat, int n) {
  const size_t count = static_cast<size_t>(flat.numel()) / n;
  std::vector<Chunk> chunks;
  for (int i = 0; i < n; ++i)
    chunks.push_back({static_cast<char*>(flat.data_ptr()) + i * count * flat.element_size(), count});
  return chunks;
}

// Complex sums are sums of their real and imaginary parts. Takes flat tensors only: those are never lazily conjugated.
at::Tensor real_view(const at::Tensor& flat, const c10d::ReduceOp& op) {
  if (!flat.is_complex() || !c10d::isComplexViewAsRealAllowed(op)) return flat;
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::view_as_real(flat);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------- one tensor

void Backend::add_all_reduce(Launch& l, const at::Tensor& given, const c10d::ReduceOp& op) const {
  check_tensor(given, "all_reduce", "tensor");
  const at::Tensor out = real_view(l.staged.flat(given, true, "all_reduce"), op);
  Call call = make_call(Collective::all_reduce, out, reduce_op_of(op, out, "all_reduce"));
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
  Call call = make_call(Collective::broadcast, flat, ReduceOp::none, opts.rootRank);
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
  Call call = make_call(Collective::reduce, out, reduce_op_of(opts.reduceOp, out, "reduce"), opts.rootRank);
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
  Call call = make_call(Collective::reduce_scatter, out, reduce_op_of(op, out, "reduce_scatter"));
  for (const at::Tensor& i : inputs) {
    check_same_type(i, given, "reduce_scatter", "an input");
    l.keep.push_back(premultiply(op, real_view(flat_input(i), op)));
    call.in.push_back(chunk_of(l.keep.back()));
  }
  call.out = {chunk_of(out)};
  l.keep.push_back(out);
  call.bytes = bytes_of(call.in, call.element);
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
  Call call = make_call(Collective::reduce_scatter, out, reduce_op_of(op, out, "reduce_scatter_tensor"));
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

// ---------------------------------------------------------------------------------------------------------------- all_to_all, gather, scatter

namespace {

// Rows of dim 0 for each rank; empty `splits`: equal parts.
std::vector<Chunk> split_rows(const at::Tensor& flat, const std::vector<int64_t>& splits, int n, const char* argument) {
  if (splits.empty()) {
    const int64_t rows = flat.dim() == 0 ? 1 : flat.size(0);
    TORCH_CHECK_VALUE(rows % n == 0, "ringcomm: all_to_all_single: ", argument, " has ", rows, " rows, which ", n,
                      " ranks cannot share equally: give split sizes");
    return parts(flat, n);
  }
  const int64_t rows = flat.dim() == 0 ? 1 : flat.size(0);
  TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == n, "ringcomm: all_to_all_single: ", splits.size(),
                    " split sizes of ", argument, " for ", n, " ranks");
  int64_t sum = 0;
  for (int64_t s : splits) {
    TORCH_CHECK_VALUE(s >= 0, "ringcomm: all_to_all_single: a split size of ", argument, " is ", s);
    sum += s;
  }
  TORCH_CHECK_VALUE(sum == rows, "ringcomm: all_to_all_single: the split sizes of ", argument, " add up to ", sum,
                    ", its dim 0 is ", rows);
  const size_t row = rows == 0 ? 0 : static_cast<size_t>(flat.numel() / rows);
  std::vector<Chunk> chunks;
  char* at = static_cast<char*>(flat.data_ptr());
  for (int64_t s : splits) {
    chunks.push_back({at, s * row});
    at += s * row * flat.element_size();
  }
  return chunks;
}

}  // namespace

intrusive_ptr<Work> Backend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                           std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  check_tensor(input, "all_to_all_single", "input");
  check_same_type(output, input, "all_to_all_single", "output");
  Launch l = prepare(OpType::ALLTOALL_BASE, "ringcomm:all_to_all", {input}, {output}, opts.timeout, opts.asyncOp);
  const at::Tensor in = flat_input(input), out = l.staged.flat(output, false, "all_to_all_single");
  Call call = make_call(Collective::all_to_all, input);
  call.out = split_rows(out, output_splits, getSize(), "output");
  call.in = split_rows(in, input_splits, getSize(), "input");
  TORCH_CHECK_VALUE(call.in[getRank()].count == call.out[getRank()].count,
                    "ringcomm: all_to_all_single: this rank sends itself ", call.in[getRank()].count,
                    " elements but expects ", call.out[getRank()].count);
  call.bytes = out.nbytes();
  call.uniform = false;
  l.keep = {in, out};
  l.calls.push_back(std::move(call));
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                      const c10d::AllToAllOptions& opts) {
  const auto n = static_cast<size_t>(getSize());
  TORCH_CHECK_VALUE(inputs.size() == n && outputs.size() == n, "ringcomm: all_to_all: ", inputs.size(), " inputs and ",
                    outputs.size(), " outputs for ", n, " ranks");
  check_tensor(inputs[0], "all_to_all", "an input");
  Launch l = prepare(OpType::ALLTOALL, "ringcomm:all_to_all", inputs, outputs, opts.timeout, opts.asyncOp);
  Call call = make_call(Collective::all_to_all, inputs[0]);
  for (size_t r = 0; r < n; ++r) {
    check_same_type(inputs[r], inputs[0], "all_to_all", "an input");
    check_same_type(outputs[r], inputs[0], "all_to_all", "an output");
    l.keep.push_back(l.staged.flat(outputs[r], false, "all_to_all"));
    call.out.push_back(chunk_of(l.keep.back()));
    l.keep.push_back(flat_input(inputs[r]));
    call.in.push_back(chunk_of(l.keep.back()));
  }
  TORCH_CHECK_VALUE(call.in[getRank()].count == call.out[getRank()].count,
                    "ringcomm: all_to_all: this rank sends itself ", call.in[getRank()].count, " elements but expects ",
                    call.out[getRank()].count);
  call.bytes = bytes_of(call.out, call.element);
  call.uniform = false;
  l.calls.push_back(std::move(call));
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                    const c10d::GatherOptions& opts) {
  const at::Tensor& input = only(inputs, "gather", "inputs");
  check_root(opts.rootRank, "gather");
  const bool root = opts.rootRank == getRank();
  TORCH_CHECK_VALUE(root ? outputs.size() == 1 && static_cast<int>(outputs[0].size()) == getSize()
                         : outputs.empty() || (outputs.size() == 1 && outputs[0].empty()),
                    "ringcomm: gather: ", root ? "the root needs one output per rank (" : "only the root has outputs (",
                    getSize(), " ranks, got ", outputs.empty() ? 0 : outputs[0].size(), ")");
  Launch l = prepare(OpType::GATHER, "ringcomm:gather", inputs, root ? outputs[0] : std::vector<at::Tensor>{},
                     opts.timeout, opts.asyncOp);
  Call call = make_call(Collective::gather, input, ReduceOp::none, opts.rootRank);
  l.keep.push_back(flat_input(input));
  call.in = {chunk_of(l.keep.back())};
  if (root) {
    for (const at::Tensor& o : outputs[0]) {
      check_same_type(o, input, "gather", "an output");
      TORCH_CHECK_VALUE(o.numel() == input.numel(), "ringcomm: gather: an output has ", o.numel(),
                        " elements, the input ", input.numel(), ": all parts have one size");
      l.keep.push_back(l.staged.flat(o, false, "gather"));
      call.out.push_back(chunk_of(l.keep.back()));
    }
  }
  call.bytes = input.nbytes() * getSize();
  call.uniform = false;
  l.calls.push_back(std::move(call));
  return go(std::move(l));
}

intrusive_ptr<Work> Backend::scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                     const c10d::ScatterOptions& opts) {
  const at::Tensor& output = only(outputs, "scatter", "outputs");
  check_root(opts.rootRank, "scatter");
  const bool root = opts.rootRank == getRank();
  TORCH_CHECK_VALUE(root ? inputs.size() == 1 && static_cast<int>(inputs[0].size()) == getSize()
                         : inputs.empty() || (inputs.size() == 1 && inputs[0].empty()),
                    "ringcomm: scatter: ", root ? "the root needs one input per rank (" : "only the root has inputs (",
                    getSize(), " ranks, got ", inputs.empty() ? 0 : inputs[0].size(), ")");
  Launch l = prepare(OpType::SCATTER, "ringcomm:scatter", root ? inputs[0] : std::vector<at::Tensor>{}, outputs,
                     opts.timeout, opts.asyncOp);
  Call call = make_call(Collective::scatter, output, ReduceOp::none, opts.rootRank);
  l.keep.push_back(l.staged.flat(output, false, "scatter"));
  call.out = {chunk_of(l.keep.back())};
  if (root) {
    for (const at::Tensor& i : inputs[0]) {
      check_same_type(i, output, "scatter", "an input");
      TORCH_CHECK_VALUE(i.numel() == output.numel(), "ringcomm: scatter: an input has ", i.numel(),
                        " elements, the output ", output.numel(), ": all parts have one size");
      l.keep.push_back(flat_input(i));
      call.in.push_back(chunk_of(l.keep.back()));
    }
  }
  call.bytes = output.nbytes() * getSize();
  call.uniform = false;
  l.calls.push_back(std::move(call));
  return go(std::move(l));
}

// ---------------------------------------------------------------------------------------------------------------- point to point

intrusive_ptr<Work> Backend::message(std::vector<at::Tensor>& tensors, int peer, int tag, bool sends) {
  const char* what = sends ? "send" : "recv";
  const at::Tensor& tensor = only(tensors, what, "tensors");
  TORCH_CHECK_VALUE(peer == kAnySource || (peer >= 0 && peer < getSize()), "ringcomm: ", what, ": rank ", peer,
                    " is not in the group (0 to ", getSize() - 1, ")");
  const bool any = peer == kAnySource;
  const char* title = sends ? "ringcomm:send" : any ? "ringcomm:recvAnySource" : "ringcomm:recv";
  const OpType type = sends ? OpType::SEND : any ? OpType::RECVANYSOURCE : OpType::RECV;
  Communicator& group = this->group();
  Outputs staged;
  const at::Tensor flat = sends ? flat_input(tensor) : staged.flat(tensor, false, what);
  auto work = c10::make_intrusive<RingWork>(getRank(), type, title, tensors, group_, tensors);
  const auto keep = std::make_shared<at::Tensor>(flat);
  const int64_t until = deadline(c10d::kUnsetTimeout);
  RequestPtr request = sends ? group.send(flat.data_ptr(), flat.nbytes(), peer, tag, until, keep)
                             : group.recv(flat.data_ptr(), flat.nbytes(), peer, tag, until, keep);
  std::function<void()> finalize;
  if (staged.needs_copy_back()) finalize = [staged = std::move(staged)] { staged.copy_back(); };
  work->begin({std::move(request)}, std::move(finalize));
  return work;
}

intrusive_ptr<Work> Backend::send(std::vector<at::Tensor>& tensors, int dst, int tag) {
  TORCH_CHECK_VALUE(dst >= 0, "ringcomm: send: rank ", dst, " is not in the group (0 to ", getSize() - 1, ")");
  return message(tensors, dst, tag, true);
}

intrusive_ptr<Work> Backend::recv(std::vector<at::Tensor>& tensors, int src, int tag) {
  TORCH_CHECK_VALUE(src >= 0, "ringcomm: recv: rank ", src, " is not in the group (0 to ", getSize() - 1, ")");
  return message(tensors, src, tag, false);
}

intrusive_ptr<Work> Backend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  return message(tensors, kAnySource, tag, false);
}

}  // namespace ringcomm
