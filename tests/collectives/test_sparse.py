"""all_reduce of sparse tensors: the sum, whatever each rank's number of elements, and sparse embeddings under DDP."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from collective_checks import Pools, nothing_wrong
from collective_inputs import values


def sparse(rank: int, shape: tuple[int, ...], sparse_dims: int, dtype: torch.dtype, coalesced: bool) -> Tensor:
    """Rank r brings 3 r elements, at places that repeat unless coalesced; rank 0 none."""
    count = 3 * rank
    rows = [values(rank, 10 + d, (count,), torch.int64).remainder(shape[d]) for d in range(sparse_dims)]
    indices = torch.stack(rows) if rows else torch.empty(0, count, dtype=torch.int64)
    tensor = torch.sparse_coo_tensor(indices, values(rank, 2, (count, *shape[sparse_dims:]), dtype), shape)
    return tensor.coalesce() if coalesced else tensor


def sums(rank: int, world: int) -> list[str]:
    wrong = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for shape, sparse_dims in (((11,), 1), ((5, 4), 2), ((7, 3), 1), ((3, 4, 2), 2)):
            for coalesced in (True, False):
                case = shape, sparse_dims, dtype, coalesced
                tensor = sparse(rank, *case)
                work = dist.all_reduce(tensor, async_op=True)
                assert work is not None
                work.wait()
                wanted = sum((sparse(r, *case).to_dense() for r in range(world)), torch.zeros(shape, dtype=dtype))
                if not torch.equal(tensor.to_dense(), wanted) or not tensor.is_sparse:
                    wrong.append(f"rank {rank}: {case}: {tensor.to_dense()} should be {wanted}")
    return wrong


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_sums(rank_pool: Pools, world: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(sums))


def refused(rank: int, world: int, what: str) -> str:
    tensor = torch.sparse_coo_tensor(
        torch.zeros(1, 1, dtype=torch.int64), torch.ones(1), (3 if what == "op" else 3 + rank,)
    )
    try:
        dist.all_reduce(tensor, dist.ReduceOp.MAX if what == "op" else dist.ReduceOp.SUM)
    except ValueError as error:
        after = torch.ones(4)
        dist.all_reduce(after)
        return str(error) if after[0] == world else "the group is broken"
    return "accepted"


@pytest.mark.parametrize(
    ("what", "words"), [("op", ("all_reduce", "sum")), ("sizes", ("all_reduce", "sparse", "sizes"))]
)
def test_mistakes_are_refused_on_every_rank(rank_pool: Pools, what: str, words: tuple[str, ...]) -> None:
    for text in rank_pool(2, backend="ringcomm").run(refused, what):
        assert all(word in text for word in words), text


def embedding_gradients(rank: int, world: int) -> Tensor:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.EmbeddingBag(10, 4, sparse=True, mode="sum"))
    model(torch.tensor([[1, 2], [2, 5 + rank]])).sum().backward()
    weight: Any = model.module.weight
    return weight.grad.to_dense()  # type: ignore[no-any-return]


def test_sparse_embeddings_under_ddp(rank_pool: Pools) -> None:
    wanted = torch.zeros(10, 4)
    for row in (1, 2, 2, 5, 1, 2, 2, 6):
        wanted[row] += 0.5
    for gradient in rank_pool(2, backend="ringcomm").run(embedding_gradients):
        assert torch.equal(gradient, wanted)
