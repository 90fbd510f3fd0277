"""Every operation on every dtype, reduce op and size gives what a serial computation gives, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist

from collective_checks import RANKS, Pools, check
from collective_inputs import INTEGERS, MOVED_ONLY, REDUCIBLE, SIZES, ops_of
from collective_operations import MOVING, REDUCING, ROOTED, Case


def roots(operation: str, world: int) -> Sequence[int]:
    return range(world) if operation in ROOTED else (0,)


@pytest.mark.parametrize("operation", REDUCING)
@pytest.mark.parametrize("world", RANKS)
def test_reductions(rank_pool: Pools, world: int, operation: str) -> None:
    sizes = SIZES if operation == "all_reduce" else SIZES[::2] + SIZES[-1:]
    check(
        rank_pool(world, backend="ringcomm"),
        [
            Case(operation, dtype, op, (size,), root=(index + size) % world, seed=index)
            for dtype in REDUCIBLE
            for index, op in enumerate(ops_of(dtype))
            for size in sizes
        ],
    )


@pytest.mark.parametrize("operation", MOVING)
@pytest.mark.parametrize("world", RANKS)
def test_moves(rank_pool: Pools, world: int, operation: str) -> None:
    check(
        rank_pool(world, backend="ringcomm"),
        [
            Case(operation, dtype, shape=(size,), root=root)
            for dtype in (*REDUCIBLE, *MOVED_ONLY)
            for size in SIZES
            for root in roots(operation, world)
        ],
    )


@pytest.mark.parametrize("operation", [*REDUCING, *MOVING])
@pytest.mark.parametrize("world", RANKS)
def test_long_messages(rank_pool: Pools, world: int, operation: str) -> None:
    cases = [
        Case(operation, dtype, shape=(size,), root=size % world)
        for dtype in (torch.float32, torch.bfloat16, torch.uint8)
        for size in (30_000, 100_000)
    ]
    check(rank_pool(world, backend="ringcomm"), cases)


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all_single"])
@pytest.mark.parametrize("world", RANKS)
def test_a_million_and_one(rank_pool: Pools, world: int, operation: str) -> None:
    check(
        rank_pool(world, backend="ringcomm"), [Case(operation, torch.float32, shape=((1 << 20) + 1,), root=world // 2)]
    )


@pytest.mark.parametrize("world", RANKS)
def test_zero_dim_and_empty_shapes(rank_pool: Pools, world: int) -> None:
    check(
        rank_pool(world, backend="ringcomm"),
        [
            Case(operation, dtype, shape=shape)
            for operation in (*REDUCING, *MOVING)
            for dtype in (torch.float32, torch.bool, *INTEGERS[:2])
            for shape in ((), (0, 3), (3, 0), (2, 3, 4))
            if shape or operation != "all_to_all_split"  # splits are rows: there must be a dim 0
        ],
    )


def by_a_tensor(rank: int, world: int) -> list[str]:
    wrong = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for factor in (torch.tensor(0.5), torch.tensor([-0.25], dtype=torch.float64)):
            tensor = torch.full((5,), float(rank + 1), dtype=dtype)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
            wanted = (factor * (world * (world + 1) / 2)).expand(5).to(dtype)  # all of them exact
            if not torch.equal(tensor, wanted):
                wrong.append(f"{dtype}, factor {factor.tolist()}: {tensor.tolist()}, not {wanted.tolist()}")
    return wrong


@pytest.mark.parametrize("world", [1, 3])
def test_factors_in_a_tensor(rank_pool: Pools, world: int) -> None:
    assert rank_pool(world, backend="ringcomm").run(by_a_tensor) == [[]] * world
