// reduce_scatter in all its forms: lists, one tensor, coalesced.
#include <utility>

#include "c10d/backend.h"
#include "c10d/describe.h"

namespace ringcomm {

using c10::intrusive_ptr;
using c10d::OpType;
using c10d::Work;

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
