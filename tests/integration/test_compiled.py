"""Functional collectives, plain and under torch.compile: the operations DTensor and compiled programs are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from ranks import RankPool

Pools = Callable[..., RankPool]


def everything(x: Tensor, group: Any, world: int) -> list[Tensor]:
    """x: [2 * world, 3], another on every rank. Each result is used in arithmetic, so a missing wait shows."""
    summed = functional.all_reduce(x * 2, "sum", group)
    largest = functional.all_reduce(x, "max", group)
    gathered = functional.all_gather_tensor(x + 1, 0, group)
    scattered = functional.reduce_scatter_tensor(x, "sum", 0, group)
    swapped = functional.all_to_all_single(x, None, None, group)
    first = functional.broadcast(x, 0, group)
    both = functional.all_reduce_coalesced([x, x[:1] * 3], "sum", group)
    wide, narrow = functional.all_gather_into_tensor_coalesced([x, x[:, :1].contiguous()], group)
    parts = functional.reduce_scatter_tensor_coalesced([x, x + 1], "sum", [0, 0], group)
    return [t + 1 for t in (summed, largest, gathered, scattered, swapped, first, *both, wide, narrow, *parts)]


def expected(inputs: list[Tensor], rank: int) -> list[Tensor]:
    x, world = inputs[rank], len(inputs)
    total, rows = torch.stack(inputs).sum(0), slice(2 * rank, 2 * rank + 2)
    results = [
        total * 2,
        torch.stack(inputs).amax(0),
        torch.cat(inputs) + 1,
        total[rows],
        torch.cat([i[rows] for i in inputs]),
        inputs[0],
        total,
        total[:1] * 3,
        torch.cat(inputs),
        torch.cat([i[:, :1] for i in inputs]),
        total[rows],
        total[rows] + world,
    ]
    assert x.shape == (2 * world, 3)
    return [r + 1 for r in results]


def run(rank: int, world: int, how: str | None) -> list[str]:
    function: Any = everything if how is None else torch.compile(everything, backend=how, fullgraph=True)
    wrong = []
    for turn in range(3):
        inputs = [torch.arange(6.0 * world).reshape(2 * world, 3) * (r + 1) + turn for r in range(world)]
        results = function(inputs[rank], dist.group.WORLD, world)
        pairs = zip(results, expected(inputs, rank), strict=True)
        wrong += [
            f"rank {rank}, {how}, turn {turn}: result {i}" for i, (a, b) in enumerate(pairs) if not torch.equal(a, b)
        ]
    torch._dynamo.reset()
    return wrong


@pytest.mark.parametrize("how", [None, "aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.ci)])
def test_functional_collectives(rank_pool: Pools, world: int, how: str | None) -> None:
    wrong = [line for lines in rank_pool(world, backend="ringcomm").run(run, how, timeout=400) for line in lines]
    assert not wrong, wrong


def autograd(rank: int, world: int, how: str | None) -> list[str]:
    """all_gather's gradient is a reduce_scatter, through a compiled backward too."""
    group: Any = dist.group.WORLD

    def loss(x: Tensor) -> Tensor:
        gathered = functional.all_gather_tensor_autograd(x, 0, group)
        return (gathered * torch.arange(float(gathered.numel())).reshape(gathered.shape)).sum()

    function: Any = loss if how is None else torch.compile(loss, backend=how, fullgraph=True)
    x = torch.ones(2, 3, requires_grad=True)
    function(x).backward()
    wanted = torch.arange(6.0 * world).reshape(2 * world, 3)[2 * rank : 2 * rank + 2] * world
    torch._dynamo.reset()
    return [] if x.grad is not None and torch.equal(x.grad, wanted) else [f"rank {rank}: {x.grad}"]


@pytest.mark.parametrize("how", [None, "aot_eager"])
def test_gradients_of_functional_collectives(rank_pool: Pools, how: str | None) -> None:
    wrong = [line for lines in rank_pool(2, backend="ringcomm").run(autograd, how, timeout=400) for line in lines]
    assert not wrong, wrong
