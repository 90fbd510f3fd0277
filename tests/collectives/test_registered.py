"""Collectives on registered memory: right values in every mix of ranks that lend and ranks that copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringcomm
from collective_checks import Pools, check, nothing_wrong
from collective_operations import OPERATIONS, REDUCING, ROOTED, Case, run_cases
from ringcomm import _load
from ringcomm.schedules import BUILT_IN

# Bytes of float32: nothing, one element, below and above what is lent (8 KiB), several pieces with an odd end.
SIZES = (0, 1, 2047, 2048, 4 * 1024 + 3, 100_003)
EVERYBODY, SOME = 0xFF, 0b0101


def cases(world: int, lenders: int) -> list[Case]:
    return [
        Case(
            operation,
            dtype,
            shape=(size,),
            layout=layout,
            root=size % world if operation in ROOTED else 0,
            seed=size,
            lenders=lenders,
        )
        for operation in OPERATIONS
        for dtype, layout in (
            (torch.float32, "contiguous"),
            (torch.bfloat16, "offset"),
            (torch.uint8, "every third"),
        )
        for size in (SIZES if dtype == torch.float32 else (4 * 1024 + 3, 30_001))
    ]


@pytest.mark.parametrize("lenders", [EVERYBODY, SOME], ids=["all", "some"])
@pytest.mark.parametrize("world", [2, 3, pytest.param(4, marks=pytest.mark.long)])
def test_every_operation(rank_pool: Pools, world: int, lenders: int) -> None:
    check(rank_pool(world, backend="ringcomm"), cases(world, lenders))


PAIRS = [(name, c.name) for name, schedule in sorted(BUILT_IN.items()) for c in schedule.collectives]
FORMS = {
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
}


def forced(rank: int, world: int, schedule: str, collective: str) -> list[str]:
    """Slots of 12 KiB: many loops of pieces that are lent, with a short end that is not."""
    config = {"version": 1, "memory": {"slot": "12KiB"}, "policy": {collective: [{"schedule": schedule}]}}
    group = dist.new_group(backend="ringcomm", pg_options=config)  # type: ignore[arg-type]
    operation = FORMS.get(collective, collective)
    wrong = run_cases(
        rank,
        world,
        [
            Case(operation, dtype, op, (size,), root=1 if operation in ROOTED else 0, lenders=lenders)
            for dtype, op in ((torch.float32, "sum"), (torch.float16, "avg" if operation in REDUCING else "sum"))
            for size in (3072, 50_001)
            for lenders in (EVERYBODY, SOME)
        ],
        group,
    )
    dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize(("schedule", "collective"), PAIRS)
@pytest.mark.parametrize("world", [2, 4])
def test_every_schedule(rank_pool: Pools, world: int, schedule: str, collective: str) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(forced, schedule, collective))


def in_place(rank: int, world: int, registered: bool) -> list[str]:
    """The own part of the output is the input, as FSDP2 calls them."""
    wrong = []
    for size in (1, 3000, 70_001):
        for lender in range(world + 1):  # one rank copies, then nobody
            make = ringcomm.empty if registered and rank != lender else torch.empty
            whole = make(size * world)
            whole.chunk(world)[rank].fill_(rank + 1)
            dist.all_gather_into_tensor(whole, whole.chunk(world)[rank])
            if not torch.equal(whole, torch.arange(1.0, world + 1).repeat_interleave(size)):
                wrong.append(f"rank {rank}: all_gather of {size}, lender {lender}")
            whole.copy_(torch.arange(size * world) % 1000 + rank)
            mine = whole.chunk(world)[rank]
            wanted = world * (torch.arange(size * world) % 1000).float().chunk(world)[rank] + world * (world - 1) / 2
            dist.reduce_scatter_tensor(mine, whole)
            if not torch.equal(mine, wanted):
                wrong.append(f"rank {rank}: reduce_scatter of {size}, lender {lender}")
    return wrong


@pytest.mark.parametrize("world", [2, 3])
def test_in_place(rank_pool: Pools, world: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(in_place, True))


def slots_taken(rank: int, world: int, registered: bool) -> int:
    """Shared memory for slots that large calls of all three kinds took."""
    make: Any = ringcomm.empty if registered else torch.empty
    group = dist.new_group(backend="ringcomm")
    before = _load.extension().memory_used()
    x, shard = make(1 << 20).fill_(rank + 1.0), make(1 << 19)
    dist.all_reduce(x, group=group)
    assert torch.equal(x, torch.full((1 << 20,), 3.0))
    dist.reduce_scatter_tensor(shard, x, group=group)
    dist.all_gather_into_tensor(x, shard, group=group)
    assert torch.equal(x, torch.full((1 << 20,), 6.0))
    taken = _load.extension().memory_used() - before
    dist.destroy_process_group(group)
    return int(taken)


def test_peers_read_in_place_without_slots(rank_pool: Pools) -> None:
    pool = rank_pool(2, backend="ringcomm")
    assert pool.run(slots_taken, True) == [0, 0]
    assert min(pool.run(slots_taken, False)) >= 1 << 20  # the others do need them


def reused_at_once(rank: int, world: int) -> list[str]:
    """Waited for, then freed or overwritten while a peer may be late: what it reads is what was given."""
    wrong = []
    gathered = torch.empty(60_000 * world)
    for k in range(30):
        shard = ringcomm.empty(60_000).fill_(k * 10.0 + rank)
        work = dist.all_gather_into_tensor(gathered, shard, async_op=True)
        if rank == k % world:
            sum(i * i for i in range(20_000))  # late
        if k % 3 == 0:
            del shard  # the call keeps it
        work.wait()
        if k % 3 == 1:
            shard.fill_(-1.0)
        other = ringcomm.empty(60_000).fill_(-2.0)  # may well be the same memory
        wanted = torch.cat([torch.full((60_000,), k * 10.0 + r) for r in range(world)])
        if not torch.equal(gathered, wanted):
            wrong.append(f"rank {rank}: call {k}")
        del other
    return wrong


@pytest.mark.parametrize("world", [2, 3])
def test_memory_is_the_callers_again_when_the_call_has_ended(rank_pool: Pools, world: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(reused_at_once))
