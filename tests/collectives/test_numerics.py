"""Roundings: the same bits on every rank, 16-bit floats added in float32 where a step has several inputs, NaN kept."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collective_checks import Pools
from collective_inputs import raw
from test_every_schedule import PAIRS, forced

SIZES = (1, 13, 15, 1000, 70_001)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def noise(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    generator = np.random.default_rng([rank, size])
    return torch.from_numpy(generator.standard_normal(size) * 10.0 ** generator.integers(-3, 3, size)).to(dtype)


def all_reduce_noise(rank: int, world: int, config: dict | None) -> list[tuple[str, float]]:  # type: ignore[type-arg]
    """Per dtype, op and size: a hash of the result's bits, and its largest error relative to the sum of magnitudes."""
    group = dist.new_group(backend="ringcomm", pg_options=config)
    results = []
    for dtype in FLOATS:
        for size in SIZES:
            inputs = torch.stack([noise(r, size, dtype).double() for r in range(world)])
            for op, wanted in {dist.ReduceOp.SUM: inputs.sum(0), dist.ReduceOp.AVG: inputs.mean(0)}.items():
                tensor = noise(rank, size, dtype)
                dist.all_reduce(tensor, op, group)
                error = ((tensor.double() - wanted).abs() / inputs.abs().sum(0)).max().item()
                results.append(
                    (hashlib.sha256(raw(tensor).numpy().tobytes()).hexdigest(), error / torch.finfo(dtype).eps)
                )
    dist.destroy_process_group(group)
    return results


@pytest.mark.parametrize("schedule", [None, *(s for s, c in PAIRS if c == "all_reduce")])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_ranks_get_the_same_bits(rank_pool: Pools, world: int, schedule: str | None) -> None:
    config = forced("all_reduce", schedule) if schedule else None
    results = rank_pool(world, backend="ringcomm").run(all_reduce_noise, config)
    for rank in range(1, world):
        assert [bits for bits, _ in results[rank]] == [bits for bits, _ in results[0]]
    # Each of at most `world` roundings adds half an ulp of a partial sum, which the sum of magnitudes bounds.
    assert max(error for _, error in results[0]) <= 0.5 * world


def many_ones(rank: int, world: int) -> list[float]:
    """bfloat16 256 + 1 is 256: ones that are added up one by one in bfloat16 vanish, in float32 they count."""
    group = dist.new_group(backend="ringcomm", pg_options=forced("all_reduce", "one_shot"))
    tensor = torch.full((100,), 256.0 if rank == 0 else 1.0, dtype=torch.bfloat16)
    dist.all_reduce(tensor, group=group)
    parts = [torch.full((9,), 256.0 if rank == 0 else 1.0, dtype=torch.bfloat16) for _ in range(world)]
    mine = torch.empty(9, dtype=torch.bfloat16)
    dist.reduce_scatter(mine, parts, group=group)
    halves = torch.full((100,), 2048.0 if rank == 0 else 1.0, dtype=torch.float16)
    dist.all_reduce(halves, group=group)
    dist.destroy_process_group(group)
    return [tensor[7].item(), mine[7].item(), halves[7].item()]


def test_sixteen_bit_floats_add_up_in_float32(rank_pool: Pools) -> None:
    # 256 + 1 + 1 + 1 = 259, between 258 and 260: to even. 2048 + 3 = 2051, between 2050 and 2052: to even.
    assert rank_pool(4, backend="ringcomm").run(many_ones) == [[260.0, 260.0, 2052.0]] * 4


def nan_and_infinity(rank: int, world: int, dtype: torch.dtype) -> list[list[float]]:
    given = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype)
    if rank == world - 1:
        given[0] = float("nan")
        given[1] = float("inf")
    if rank == 0:
        given[2] = float("-inf")
    results = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
        tensor = given.clone()
        dist.all_reduce(tensor, op)
        results.append(tensor.double().tolist())
    return results


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_propagate(rank_pool: Pools, dtype: torch.dtype) -> None:
    inf, n = float("inf"), 3
    wanted = [[inf, -inf, 4.0 * n], [2.0, -inf, 4.0], [inf, 3.0, 4.0], [inf, -inf, 4.0]]
    for result in rank_pool(n, backend="ringcomm").run(nan_and_infinity, dtype):
        assert all(np.isnan(row[0]) for row in result)
        assert [row[1:] for row in result] == wanted
