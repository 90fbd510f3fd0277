// The operations in which ranks hold parts of different sizes: all_to_all, gather, scatter, and messages.
#include <utility>

#include "c10d/backend.h"
#include "c10d/describe.h"
#include "c10d/overlap.h"

namespace ringcomm {

using c10::intrusive_ptr;
using c10d::OpType;
using c10d::Work;

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
    TORCH_CHECK_VALUE(s <= rows - sum, "ringcomm: all_to_all_single: the split sizes of ",
                      argument,  // before it could overflow
                      " add up to more than its dim 0, ", rows);
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
  l.in_splits = input_splits;
  l.out_splits = output_splits;
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
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "ringcomm: ", what, ": the tensor is on ", tensor.device(),
                    "; messages are for CPU tensors so far");
  TORCH_CHECK_VALUE(peer == kAnySource || (peer >= 0 && peer < getSize()), "ringcomm: ", what, ": rank ", peer,
                    " is not in the group (0 to ", getSize() - 1, ")");
  const bool any = peer == kAnySource;
  const char* title = sends ? "ringcomm:send" : any ? "ringcomm:recvAnySource" : "ringcomm:recv";
  const OpType type = sends ? OpType::SEND : any ? OpType::RECVANYSOURCE : OpType::RECV;
  Communicator& group = this->group();
  introduce();
  Outputs staged;
  const at::Tensor flat = sends ? flat_input(tensor) : staged.flat(tensor, false, what);
  const bool profiled = profiler_listens();
  auto work = c10::make_intrusive<RingWork>(getRank(), type, profiled ? title : nullptr, tensors, group_, tensors);
  const auto keep = std::make_shared<at::Tensor>(flat);
  const int64_t until = deadline(c10d::kUnsetTimeout);
  const FlightShape shape = shape_of(tensors);
  const FlightShapes shapes{shape, shape};
  const auto issue = [&] {
    return sends ? group.send(flat.data_ptr(), flat.nbytes(), peer, tag, until, keep, &shapes)
                 : group.recv(flat.data_ptr(), flat.nbytes(), peer, tag, until, keep, &shapes);
  };
  RequestPtr request = profiled
                           ? in_profiler_range(profiled_, {what, static_cast<int64_t>(group.sequence()), true, peer},
                                               tensors, tensors, issue)
                           : issue();
  std::function<void()> finalize;
  if (staged.needs_copy_back()) finalize = [staged = std::move(staged)] { staged.copy_back(); };
  return begin(std::move(work), {std::move(request)}, std::move(finalize));
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
