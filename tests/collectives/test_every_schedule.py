"""Every schedule gives the right values, forced by configuration, with slots so small that messages take many loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective_checks import Pools, nothing_wrong
from collective_inputs import REDUCIBLE, ops_of
from collective_operations import REDUCING, ROOTED, Case, run_cases
from ringcomm.schedules import BUILT_IN

PAIRS = [(name, c.name) for name, schedule in sorted(BUILT_IN.items()) for c in schedule.collectives]
OPERATIONS = {
    "all_reduce": ("all_reduce", "all_reduce_coalesced"),
    "all_gather": ("all_gather", "all_gather_into_tensor"),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_tensor"),
    "all_to_all": ("all_to_all_single", "all_to_all_split", "all_to_all"),
}
# Below one cache line, an inline line, a slot, some slots, more loops than there are slots and lag together.
SIZES = (1, 14, 15, 1023, 1024 * 3 + 1, 1024 * 29 + 5)


def forced(collective: str, schedule: str, **memory: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "memory": {"slot": "4KiB", **memory},
        "policy": {collective: [{"schedule": schedule}]},
    }


def cases_of(collective: str, world: int) -> list[Case]:
    cases = []
    for operation in OPERATIONS.get(collective, (collective,)):
        for size in SIZES:
            root = size % world if operation in ROOTED else 0
            cases += [
                Case(operation, dtype, shape=(size,), root=root)
                for dtype in (torch.float32, torch.bfloat16, torch.uint8)
            ]
        if operation in REDUCING:
            cases += [
                Case(operation, dtype, op, (3001,), root=world - 1) for dtype in REDUCIBLE for op in ops_of(dtype)
            ]
    return cases


def run_in_own_group(rank: int, world: int, config: dict[str, Any], cases: list[Case]) -> list[str]:
    group = dist.new_group(backend="ringcomm", pg_options=config)
    wrong = run_cases(rank, world, cases, group)
    dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize(("schedule", "collective"), PAIRS)
@pytest.mark.parametrize("world", [2, 3, 4, 5, pytest.param(8, marks=pytest.mark.long)])
def test_forced(rank_pool: Pools, world: int, schedule: str, collective: str) -> None:
    pool = rank_pool(world, backend="ringcomm")
    nothing_wrong(pool.run(run_in_own_group, forced(collective, schedule), cases_of(collective, world)))


@pytest.mark.parametrize(("schedule", "collective"), PAIRS)
def test_with_the_fewest_slots(rank_pool: Pools, schedule: str, collective: str) -> None:
    """The fewest the schedule states; `memory.slots` allows two and more."""
    slots = max(2, BUILT_IN[schedule].min_slots)
    pool = rank_pool(3, backend="ringcomm")
    nothing_wrong(pool.run(run_in_own_group, forced(collective, schedule, slots=slots), cases_of(collective, 3)))


def every_collective(rank: int, world: int) -> list[str]:
    cases = [
        Case(operation, dtype, shape=(size,), root=size % world, layout=layout)
        for collective in (
            "all_reduce",
            "broadcast",
            "reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "gather",
            "scatter",
        )
        for operation in OPERATIONS.get(collective, (collective,))
        for dtype in (torch.float32, torch.bfloat16, torch.int8)
        for size in (*SIZES, 100_001)
        for layout in ("contiguous", "every third")
    ]
    return run_cases(rank, world, cases)


def channels(count: int) -> dict[str, Any]:
    rules = {c: [{"schedule": s, "channels": count}] for s, c in PAIRS if c not in ("all_to_all", "gather", "scatter")}
    return {"version": 1, "progress": {"workers": 2}, "memory": {"slot": "64KiB"}, "policy": rules}


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("world", [2, 3])
def test_channels_carry_disjoint_parts(rank_pool: Pools, world: int, count: int) -> None:
    pool = rank_pool(world, backend="ringcomm", pg_options=channels(count))
    nothing_wrong(pool.run(every_collective, timeout=120))
