"""`numerics`: bits that depend on the ranks' values alone (reproducible), and one rounding of 16-bit floats (float32).

The reference is serial and knows neither schedules nor chunks: numpy, one tree over the ranks, one rounding.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collective_checks import Pools, nothing_wrong
from collective_inputs import same_bits
from collective_operations import ROOTED, Case, run_cases
from collective_results import fold, tree
from ringcomm.schedules import BUILT_IN
from test_every_schedule import OPERATIONS

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)
OPS = ("sum", "avg", "product")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
REDUCERS = [(s.name, c.name) for s in BUILT_IN.values() for c in s.collectives if c.name in REDUCING]
BINOMIAL = str(Path(__file__).parents[1] / "program/examples/binomial.py")
# One cache line and less, more than one slot, several loops of every schedule; none a multiple of anything.
SIZES = (1, 13, 1023, 9001)
WORLDS = [1, 2, 3, 5, *(pytest.param(n, marks=pytest.mark.long) for n in (4, 6, 7, 8))]


def settings(collective: str, schedule: str, **numerics: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "memory": {"slot": "4KiB"},
        "policy": {collective: [{"schedule": schedule}]},
        "numerics": numerics,
    }
    return config | ({"schedules": [BINOMIAL]} if schedule == "binomial" else {})


def noise(rank: int, seed: int, size: int, dtype: torch.dtype, op: str) -> Tensor:
    """Sums round at every addition: magnitudes differ, and signs. Products neither vanish nor overflow."""
    generator = np.random.default_rng([rank, seed, size])
    if op == "product":
        values = generator.uniform(0.7, 1.4, size)
    else:
        values = generator.standard_normal(size) * 10.0 ** generator.integers(-2, 3, size)
    return torch.from_numpy(values).to(dtype)


@cache  # a rank's process lives through all tests of a module
def inputs(world: int, seed: int, size: int, dtype: torch.dtype, op: str) -> list[Tensor]:
    return [noise(r, seed, size, dtype, op) for r in range(world)]


@cache
def serial(world: int, seed: int, size: int, dtype: torch.dtype, op: str) -> Tensor:
    return fold(op, inputs(world, seed, size, dtype, op), tree)


def reduce_op(op: str) -> Any:
    return getattr(dist.ReduceOp, op.upper())


def run(rank: int, collective: str, given: list[Tensor], op: str, group: Any, shift: int) -> tuple[Tensor, slice]:
    """(what this rank got, which part of the whole it is); the buffer lies `shift` elements into another one."""
    n, size = len(given), given[0].numel()
    base = torch.zeros(size + shift + 1, dtype=given[0].dtype)
    mine = base[shift : shift + size].copy_(given[rank])
    if collective == "all_reduce":
        dist.all_reduce(mine, reduce_op(op), group)
        return mine, slice(0, size)
    if collective == "reduce":
        root = size % n
        dist.reduce(mine, dist.get_global_rank(group, root), reduce_op(op), group)
        assert rank == root or same_bits(mine, given[rank])
        return mine, slice(0, size) if rank == root else slice(0, 0)
    part = size // n
    out = torch.empty(part, dtype=mine.dtype)
    dist.reduce_scatter_tensor(out, mine[: part * n], reduce_op(op), group=group)
    assert same_bits(mine, given[rank])
    return out, slice(part * rank, part * (rank + 1))


def differing(rank: int, world: int, collective: str, config: dict[str, Any]) -> list[str]:
    """Every call whose bits are not the serial reference's, in words."""
    group = dist.new_group(backend="ringcomm", pg_options={"version": 1, **config})
    wrong = []
    for dtype in FLOATS:
        for op in OPS:
            for size in SIZES:
                given, wanted = inputs(world, 1, size, dtype, op), serial(world, 1, size, dtype, op)
                got, part = run(rank, collective, given, op, group, shift=size % 5)
                if not same_bits(got[: part.stop - part.start], wanted[part]):
                    wrong.append(f"rank {rank}: {collective} {dtype} {op} of {size}")
    wrong += in_buckets(rank, world, group) if collective == "all_reduce" else []
    dist.destroy_process_group(group)
    return wrong


def in_buckets(rank: int, world: int, group: Any) -> list[str]:
    """5000 gradients, whole, and in buckets that put each one elsewhere, coalesced and one by one."""
    wrong = []
    for dtype in FLOATS:
        given, wanted = inputs(world, 2, 5000, dtype, "avg"), serial(world, 2, 5000, dtype, "avg")
        for sizes in ((5000,), (1, 4999), (2500, 2500), (17, 1000, 3, 3980)):
            for together in (True, False):
                whole = given[rank].clone()
                buckets = list(whole.split(list(sizes)))
                if together:
                    dist.all_reduce_coalesced(buckets, dist.ReduceOp.AVG, group)
                else:
                    for bucket in reversed(buckets):
                        dist.all_reduce(bucket, dist.ReduceOp.AVG, group)
                if not same_bits(whole, wanted):
                    wrong.append(f"rank {rank}: {dtype} in buckets of {sizes}, coalesced {together}")
    return wrong


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("schedule", "collective"), [*REDUCERS, ("binomial", "all_reduce")])
def test_reproducible_gives_the_serial_bits(rank_pool: Pools, world: int, schedule: str, collective: str) -> None:
    """Whatever schedule is asked for: it is the tree, or another one carries the call."""
    config = settings(collective, schedule, reproducible=True)
    nothing_wrong(rank_pool(world, backend="ringcomm").run(differing, collective, config, timeout=120))


@pytest.mark.parametrize("world", [3, 5])
def test_reproducible_with_channels_and_the_shipped_rules(rank_pool: Pools, world: int) -> None:
    pool = rank_pool(world, backend="ringcomm")
    nothing_wrong(pool.run(differing, "all_reduce", {"numerics": {"reproducible": True}}, timeout=120))
    config = settings("all_reduce", "halving", reproducible=True)
    config["policy"]["all_reduce"][0]["channels"] = 2
    config["memory"]["slot"] = "64KiB"
    nothing_wrong(pool.run(differing, "all_reduce", config, timeout=120))


@pytest.mark.parametrize("schedule", ["ring", "tree", "halving"])
def test_without_it_the_bits_are_others(rank_pool: Pools, schedule: str) -> None:
    """What the test above compares does differ: by the order of a ring, by the roundings of nested steps."""
    config = settings("all_reduce", schedule, reproducible=False)
    wrong = "\n".join(rank_pool(5, backend="ringcomm").run(differing, "all_reduce", config, timeout=120)[0])
    assert "bfloat16 sum of 9001" in wrong and "in buckets" in wrong
    assert ("float64 sum of 9001" in wrong) == ("float32 product of 9001" in wrong) == (schedule != "halving")


def rounded_once(rank: int, world: int, collective: str, schedule: str) -> tuple[list[str], int]:
    """(16-bit results that are not the float32 results rounded, how many differ from those of `accumulate: input`)."""
    wide, plain = (
        dist.new_group(
            backend="ringcomm", pg_options={"version": 1, **settings(collective, schedule, accumulate=accumulate)}
        )
        for accumulate in ("float32", "input")
    )
    wrong, others = [], 0
    for dtype in HALVES:
        for op in OPS:
            for size in SIZES:
                given = inputs(world, 3, size, dtype, op)
                got, _ = run(rank, collective, given, op, wide, shift=1)
                exact, part = run(rank, collective, [t.float() for t in given], op, plain, shift=3)
                rounded, _ = run(rank, collective, given, op, plain, shift=2)
                if part.stop > part.start and not same_bits(got, exact.to(dtype)):
                    wrong.append(f"rank {rank}: {collective} {schedule} {dtype} {op} of {size}")
                others += int((got != rounded).sum())
    dist.destroy_process_group(wide)
    dist.destroy_process_group(plain)
    return wrong, others


@pytest.mark.parametrize("world", [2, 4, 5])
@pytest.mark.parametrize(("schedule", "collective"), REDUCERS)
def test_accumulate_float32_is_the_float32_result_rounded_once(
    rank_pool: Pools, world: int, schedule: str, collective: str
) -> None:
    reports = rank_pool(world, backend="ringcomm").run(rounded_once, collective, schedule, timeout=120)
    nothing_wrong([wrong for wrong, _ in reports])
    direct = world == 2 or schedule in ("one_shot", "two_shot")
    assert (sum(others for _, others in reports) == 0) == direct  # only nested steps round more than once by themselves


def widened_cases(collective: str) -> list[Case]:
    return [
        Case(operation, dtype, op, shape, layout, root=root)
        for operation in OPERATIONS.get(collective, (collective,))
        for dtype in (*HALVES, torch.float32, torch.int32)
        for op in ("sum", "avg", "max")
        for shape in ((0,), (1,), (15,), (3, 1001))
        for layout in ("contiguous", "every third")
        for root in ((0, 3) if operation in ROOTED else (0,))
    ]


def run_in_group(rank: int, world: int, config: dict[str, Any], cases: list[Case]) -> list[str]:
    group = dist.new_group(backend="ringcomm", pg_options={"version": 1, **config})
    wrong = run_cases(rank, world, cases, group)
    dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize(
    ("schedule", "collective"), [("ring", "all_reduce"), ("tree", "reduce"), ("ring", "reduce_scatter")]
)
def test_widened_calls_keep_inputs_and_serve_every_layout(rank_pool: Pools, schedule: str, collective: str) -> None:
    config = settings(collective, schedule, accumulate="float32")
    pool = rank_pool(4, backend="ringcomm")
    nothing_wrong(pool.run(run_in_group, config, widened_cases(collective), timeout=120))


def on_the_way(rank: int, world: int, accumulate: str) -> list[list[float]]:
    """Sums that leave float16 and come back, a NaN, an infinity that stays; waited for in three ways."""
    config = {"version": 1, **settings("all_reduce", "ring", accumulate=accumulate)}
    group = dist.new_group(backend="ringcomm", pg_options=config)
    sign = 1 if rank in (1, 2) else -1  # the ring starts chunk 0 at rank 1
    tensors = [torch.tensor([sign * 60000.0, 1.0, 0.25], dtype=torch.float16) for _ in range(3)]
    if rank == 1:
        tensors[1][1], tensors[1][2] = float("nan"), float("inf")
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors[:2]]
    dist.all_reduce(tensors[2], group=group)
    works[0].wait()
    works[1].get_future().wait()
    dist.destroy_process_group(group)
    return [tensor.double().tolist() for tensor in tensors]


def test_sums_may_leave_float16_on_their_way(rank_pool: Pools) -> None:
    pool = rank_pool(4, backend="ringcomm")
    for first, second, third in pool.run(on_the_way, "float32"):
        assert first == third == [0.0, 4.0, 1.0]
        assert second[0] == 0.0 and np.isnan(second[1]) and second[2] == float("inf")
    assert any(not np.isfinite(first[0]) or first[0] != 0 for first, *_ in pool.run(on_the_way, "input"))


def mismatch(rank: int, world: int) -> str:
    """Bytes as many as the other rank's, and after widening elements of one type: still two different calls."""
    config = {"version": 1, **settings("all_reduce", "ring", accumulate="float32")}
    group = dist.new_group(backend="ringcomm", pg_options=config)
    tensor = torch.ones(200 if rank else 100, dtype=torch.bfloat16 if rank else torch.float32)
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    return str(caught.value)


def test_a_widened_call_is_still_told_from_a_float32_call(rank_pool: Pools) -> None:
    for text in rank_pool(3, backend="ringcomm").run(mismatch):
        assert "bfloat16" in text and "float32" in text
