"""What cannot be right is refused before anything is sent: the error names the argument, its value and what is allowed.

Every rank makes the same mistake, so every rank is refused; afterwards the group works as if nothing had been asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective_checks import Pools

F, I8 = torch.float32, torch.int8


def backend() -> Any:
    """Below torch's own checks of arguments, which would hide ours."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]


def options(kind: str, **fields: Any) -> Any:
    made = getattr(dist, kind)()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def all_reduce(op: Any, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, op)


def freed(shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    """As FSDP leaves a parameter whose memory it has given back."""
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def shortened() -> torch.Tensor:
    """Strided, with the last element's last byte beyond the storage."""
    tensor = torch.ones(3, 4)[:, 1]
    tensor.untyped_storage().resize_(4 * (1 + 2 * 4 + 1) - 1)
    return tensor


OP = dist.ReduceOp
# name: (the mistake, words that the error must have)
MISTAKES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "bitwise op on floats": (
        lambda: all_reduce(OP.BAND, torch.ones(2)),
        ("all_reduce", "band", "torch.float32", "sum"),
    ),
    "average of bools": (lambda: all_reduce(OP.AVG, torch.ones(2, dtype=torch.bool)), ("avg", "torch.bool", "bor")),
    "sum of float8": (
        lambda: all_reduce(OP.SUM, torch.ones(2).to(torch.float8_e5m2)),
        ("sum", "torch.float8_e5m2", "moved"),
    ),
    "factor on integers": (
        lambda: all_reduce(dist._make_nccl_premul_sum(0.5), torch.ones(2, dtype=I8)),
        ("premul_sum", "torch.int8", "allowed"),
    ),
    "sparse": (
        lambda: backend().broadcast([torch.eye(2).to_sparse()], options("BroadcastOptions")),
        ("broadcast", "Sparse", "strided"),
    ),
    "freed memory": (lambda: dist.all_reduce(freed()), ("all_reduce", "sizes [3, 4]", "48 bytes", "has 0:")),
    "freed output": (
        lambda: dist.all_gather_into_tensor(freed((6,)), torch.ones(2)),
        ("all_gather_into_tensor", "output", "given back"),
    ),
    "freed message": (lambda: dist.send(freed(), (dist.get_rank() + 1) % 3), ("send", "given back")),
    "short storage": (lambda: dist.broadcast(shortened(), 0), ("broadcast", "40 bytes", "has 39")),
    "meta device": (
        lambda: backend().broadcast([torch.empty(2, device="meta")], options("BroadcastOptions")),
        ("broadcast", "meta", "CPU"),
    ),
    "two tensors": (lambda: backend().allreduce([torch.ones(1), torch.ones(1)]), ("all_reduce", "one tensor", "2")),
    "root too large": (
        lambda: backend().broadcast([torch.ones(1)], options("BroadcastOptions", rootRank=7)),
        ("broadcast", "root", "7", "0 to 2"),
    ),
    "negative root": (
        lambda: backend().reduce([torch.ones(1)], options("ReduceOptions", rootRank=-1)),
        ("reduce", "root", "-1", "0 to 2"),
    ),
    "output too small": (
        lambda: backend()._allgather_base(torch.empty(5), torch.empty(2)),
        ("all_gather", "output", "3 x 2", "5"),
    ),
    "input too small": (
        lambda: backend()._reduce_scatter_base(torch.empty(2), torch.empty(5), options("ReduceScatterOptions")),
        ("reduce_scatter", "input", "3 x 2", "5"),
    ),
    "too few outputs": (
        lambda: backend().allgather([[torch.empty(1)] * 2], [torch.empty(1)]),
        ("all_gather", "2", "3"),
    ),
    "mixed types": (
        lambda: backend().allgather([[torch.empty(1)] * 2 + [torch.empty(1, dtype=I8)]], [torch.empty(1)]),
        ("all_gather", "output", "Char", "Float"),
    ),
    "own part of another size": (
        lambda: backend().allgather([[torch.empty(2) for _ in range(3)]], [torch.empty(1)]),
        ("all_gather", "1", "2"),
    ),
    "too few inputs": (
        lambda: backend().reduce_scatter([torch.empty(1)], [[torch.empty(1)] * 2], options("ReduceScatterOptions")),
        ("reduce_scatter", "input", "2", "3"),
    ),
    "outputs off the root": (
        lambda: backend().gather(
            [[torch.empty(1)] * (2 if dist.get_rank() == 0 else 3)],
            [torch.empty(1)],
            options("GatherOptions", rootRank=0),
        ),
        ("gather", "root", "3"),
    ),
    "inputs off the root": (
        lambda: backend().scatter(
            [torch.empty(1)],
            [[torch.empty(1)] * (2 if dist.get_rank() == 0 else 3)],
            options("ScatterOptions", rootRank=0),
        ),
        ("scatter", "root", "3"),
    ),
    "parts of unequal size": (
        lambda: backend().scatter(
            [torch.empty(2)], [[torch.empty(i) for i in (2, 2, 3)]], options("ScatterOptions", rootRank=dist.get_rank())
        ),
        ("scatter", "3", "2", "one size"),
    ),
    "outputs of unequal size": (
        lambda: backend().gather(
            [[torch.empty(i) for i in (2, 2, 3)]], [torch.empty(2)], options("GatherOptions", rootRank=dist.get_rank())
        ),
        ("gather", "3", "2", "one size"),
    ),
    "rows that do not divide": (
        lambda: dist.all_to_all_single(torch.empty(4), torch.empty(4)),
        ("all_to_all_single", "4", "3", "split"),
    ),
    "splits of another sum": (
        lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 1, 1], [1, 1, 2]),
        ("all_to_all_single", "input", "more than its dim 0, 3"),
    ),
    "splits of too small a sum": (
        lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 1, 1], [1, 1, 0]),
        ("all_to_all_single", "input", "add up to 2", "3"),
    ),
    "splits whose sum overflows": (
        lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 1, 1], [2**63 - 1, 2**63 - 1, 5]),
        ("all_to_all_single", "input", "more than its dim 0, 3"),
    ),
    "too few splits": (
        lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 2], [1, 1, 1]),
        ("output", "2", "3"),
    ),
    "negative split": (
        lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 1, 1], [3, -1, 1]),
        ("input", "-1"),
    ),
    "lists of another length": (
        lambda: dist.all_to_all([torch.empty(1)] * 3, [torch.empty(1)] * 2),
        ("all_to_all", "2", "3"),
    ),
    "peer too large": (lambda: backend().send([torch.empty(1)], 3, 0), ("send", "3", "0 to 2")),
    "negative peer": (lambda: backend().recv([torch.empty(1)], -2, 0), ("recv", "-2", "0 to 2")),
    "no tensors": (
        lambda: backend().allreduce_coalesced([], dist.AllreduceCoalescedOptions()),
        ("all_reduce_coalesced", "empty"),
    ),
}


def make_mistake(rank: int, world: int, name: str) -> tuple[str, str, float]:
    mistake, _ = MISTAKES[name]
    kind, text = "accepted", ""
    try:
        mistake()
    except (ValueError, RuntimeError) as error:
        kind, text = type(error).__name__, str(error)
    after = torch.full((2000,), 1.0)
    dist.all_reduce(after)
    return kind, text, after[0].item()


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_and_the_group_goes_on(rank_pool: Pools, name: str) -> None:
    for kind, text, after in rank_pool(3, backend="ringcomm").run(make_mistake, name):
        assert kind == "ValueError", (kind, text)
        assert after == 3.0
        missing = [word for word in ("ringcomm", *MISTAKES[name][1]) if word not in text]
        assert not missing, f"{missing} not in: {text}"
