"""Declared nodes, real ranks: the shipped rules and every pair of schedules inside and across give right values."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective_checks import Pools, nothing_wrong
from collective_operations import REDUCING, ROOTED, Case, run_cases
from ranks import run_ranks
from ringcomm import config, policy
from ringcomm.schedules import hierarchical
from ringcomm.schedules.shapes import parse, places_of
from test_every_schedule import OPERATIONS
from test_reproducible import REDUCING as REPRODUCIBLE
from test_reproducible import differing

NODES: dict[str, list[Any]] = {
    "2x2": [[0, 1], [2, 3]],
    "3+1": [[0, 1, 2], [3]],
    "[0,2|1,3]": [[0, 2], [1, 3]],
    "2x4": ["0-3", "4-7"],
    "3+2": ["0-2", "3-4"],
    "4+1": ["0-3", "4"],
    "4+2": ["0-3", "4-5"],
}
COLLECTIVES = (*hierarchical.ALLOWED, "all_to_all", "gather", "scatter")
# Elements of four bytes: on both sides of every bound of the shipped rules.
SIZES = (0, 1, 13, 4096, 4097, 70_001, 270_001)


def world_of(shape: str) -> int:
    return len(places_of(parse(shape)))


def cases_of(collective: str, world: int, sizes: tuple[int, ...], ops: bool = False) -> list[Case]:
    dtypes = (torch.float32, torch.bfloat16, torch.uint8)
    cases = [
        Case(operation, dtype, shape=(size,), root=size % world if operation in ROOTED else 0)
        for operation in OPERATIONS.get(collective, (collective,))
        for size in sizes
        for dtype in (dtypes if size < 5000 else dtypes[:1])
    ]
    if ops and collective in REDUCING:
        cases += [Case(collective, torch.bfloat16, op, (3001,), root=world - 1) for op in ("avg", "max", "product")]
    # Some ranks' memory is registered: what is lent must not be written too early.
    registered = ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "reduce")
    cases += [Case(o, shape=(40_000,), lenders=1) for o in OPERATIONS.get(collective, (collective,)) if o in registered]
    return cases


def run_in_own_group(rank: int, world: int, settings: dict[str, Any], cases: list[Case]) -> list[str]:
    group = dist.new_group(backend="ringcomm", pg_options=settings)
    wrong = run_cases(rank, world, cases, group)
    dist.barrier(group)
    dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize("shape", ["2x2", "3+1", "[0,2|1,3]", pytest.param("2x4", marks=pytest.mark.long)])
def test_the_shipped_rules_on_declared_nodes(rank_pool: Pools, shape: str) -> None:
    world = world_of(shape)
    settings = {"topology": {"nodes": NODES[shape]}}
    table = policy.table(config.load(settings, {}), world, places_of(parse(shape)))
    for collective in (*hierarchical.ALLOWED, "barrier"):
        assert all(r.schedule.endswith(f"@{shape}") for r in table if r.collective == collective)
    sizes = SIZES if world < 8 else (1, 13, 4097, 70_001)  # 8 ranks take turns on two cores
    cases = [case for collective in COLLECTIVES for case in cases_of(collective, world, sizes)]
    nothing_wrong(rank_pool(world, backend="ringcomm").run(run_in_own_group, settings, cases, timeout=200))


def forced(collective: str, pair: tuple[str, str], shape: str, **sections: Any) -> dict[str, Any]:
    rule = {"schedule": "hierarchical", "inside": pair[0], "across": pair[1]}
    return {
        "memory": {"slot": "4KiB"},
        "topology": {"nodes": NODES[shape]},
        "policy": {collective: [rule]},
        **sections,
    }


@pytest.mark.parametrize("collective", hierarchical.ALLOWED)
def test_any_inside_and_any_across(rank_pool: Pools, collective: str) -> None:
    """With slots so small that messages take many loops; nodes and numbers of slots take turns."""
    shapes = ("3+2", "2x2", "4+1", "[0,2|1,3]")
    for i, pair in enumerate(product(*hierarchical.ALLOWED[collective])):
        shape = shapes[i % len(shapes)]
        settings = forced(collective, pair, shape, memory={"slot": "4KiB", "slots": (4, 2, 3)[i // 2 % 3]})
        cases = cases_of(collective, world_of(shape), (1, 15, 1023, 29_000), ops=True)
        pool = rank_pool(world_of(shape), backend="ringcomm")
        nothing_wrong(
            [[f"{pair} on {shape}: {w}" for w in wrong] for wrong in pool.run(run_in_own_group, settings, cases)]
        )


@pytest.mark.parametrize("shape", ["2x2", "4+1", "4+2"])
@pytest.mark.parametrize("collective", REPRODUCIBLE)
def test_reproducible_gives_the_serial_bits_on_aligned_nodes(rank_pool: Pools, collective: str, shape: str) -> None:
    pairs = [("one_shot", "one_shot")]
    if collective == "all_reduce":
        pairs += [("two_shot", "doubling"), ("halving", "two_shot"), ("tree", "halving")]
    for pair in pairs:
        settings = forced(collective, pair, shape, numerics={"reproducible": True})
        table = policy.table(config.load(settings, {}), world_of(shape), places_of(parse(shape)))
        (rule,) = (r for r in table if r.collective == collective)
        assert rule.schedule.startswith("hierarchical(") and rule.wide
        nothing_wrong(rank_pool(world_of(shape), backend="ringcomm").run(differing, collective, settings, timeout=200))


def a_job(rank: int, world: int) -> float:
    dist.init_process_group("ringcomm")
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    node = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(tensor, group=node)
    dist.destroy_process_group()
    return float(tensor[0])


def test_the_log_names_what_runs_inside_and_across(tmp_path: Path) -> None:
    env: dict[str, str | None] = {"RINGCOMM_RANKS_PER_NODE": "2", "RINGCOMM_DEBUG": "INFO"}
    found = run_ranks(a_job, 4, env={**env, "RINGCOMM_DEBUG_FILE": str(tmp_path / "log-%r")})
    assert found == [20.0, 20.0, 10.0, 10.0]
    lines = [line for line in (tmp_path / "log-0").read_text().splitlines() if "policy: all_reduce" in line]
    assert "4000 B x 4 ranks -> hierarchical(one_shot,one_shot)@2x2 (slot" in lines[0]
    assert "hierarchical" not in lines[1]
