// all_gather in all its forms: lists, one tensor, coalesced.
#include <utility>

#include "c10d/backend.h"
#include "c10d/describe.h"

namespace ringcomm {

using c10::intrusive_ptr;
using c10d::OpType;
using c10d::Work;

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

}  // namespace ringcomm
