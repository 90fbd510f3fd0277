// all_reduce of a sparse (COO) tensor, as DDP asks for with sparse embeddings: every rank gathers all indices and values and adds them up itself.
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "c10d/backend.h"

namespace ringcomm {
namespace {

// What ranks tell each other first: dims, number of elements, sizes. Ranks with another number of dims are told apart by the length of this.
at::Tensor description(const at::Tensor& coalesced) {
  std::vector<int64_t> facts = {coalesced.sparse_dim(), coalesced.dense_dim(), coalesced._nnz()};
  facts.insert(facts.end(), coalesced.sizes().begin(), coalesced.sizes().end());
  return at::tensor(facts, at::kLong);
}

std::vector<int64_t> counts_of(const at::Tensor& everyone, const at::Tensor& mine) {
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < everyone.size(0); ++rank) {
    const at::Tensor theirs = everyone[rank];
    counts.push_back(theirs[2].item<int64_t>());
    at::Tensor same = theirs.clone();
    same[2] = mine[2];
    TORCH_CHECK_VALUE(at::equal(same, mine),
                      "ringcomm: all_reduce: the sparse tensor has (sparse dims, dense dims, elements, sizes...) ",
                      mine, " here and ", theirs, " on rank ", rank,
                      " of the group; all but the number of elements must be equal");
  }
  return counts;
}

std::vector<at::Tensor> one_per_rank(const at::Tensor& like, const std::vector<int64_t>& counts) {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> sizes = like.sizes().vec();
  for (int64_t count : counts) {
    sizes[0] = count;
    tensors.push_back(at::empty(sizes, like.options()));
  }
  return tensors;
}

}  // namespace

c10::intrusive_ptr<c10d::Work> Backend::sparse_all_reduce(const at::Tensor& tensor,
                                                          const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "ringcomm: all_reduce: the sparse tensor is on ", tensor.device(),
                    "; sparse ones are handled on the CPU so far");
  TORCH_CHECK_VALUE(opts.reduceOp.op_ == c10d::ReduceOp::SUM,
                    "ringcomm: all_reduce: of sparse tensors only the sum is defined, not reduce op ",
                    static_cast<int>(opts.reduceOp.op_));
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor mine = tensor.coalesce(), facts = description(mine);
  at::Tensor everyone = at::empty({getSize(), facts.size(0)}, facts.options());
  Launch first = prepare(c10d::OpType::ALLGATHER, nullptr, {}, {}, opts.timeout, false);
  add_all_gather(first, everyone, facts);
  go(std::move(first))->wait();

  const std::vector<int64_t> counts = counts_of(everyone, facts);
  const at::Tensor indices = mine._indices().t().contiguous(), values = mine._values();  // a row per element
  const std::vector<at::Tensor> all_indices = one_per_rank(indices, counts), all_values = one_per_rank(values, counts);
  Launch l = prepare(c10d::OpType::ALLREDUCE, "ringcomm:all_reduce", {tensor}, {tensor}, opts.timeout, opts.asyncOp);
  add_all_gather(l, all_indices, indices);
  add_all_gather(l, all_values, values);
  l.finish = [tensor, all_indices, all_values] {
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor result = tensor;
    result.copy_(
        at::_sparse_coo_tensor_unsafe(at::cat(all_indices).t(), at::cat(all_values), tensor.sizes(), tensor.options())
            .coalesce());
  };
  return go(std::move(l));
}

}  // namespace ringcomm
