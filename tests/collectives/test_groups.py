"""Groups of some ranks: roots and peers are global ranks in torch's calls, group ranks inside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective_checks import Pools, nothing_wrong
from collective_operations import MOVING, REDUCING, ROOTED, Case, run_cases


def on_subgroups(rank: int, world: int, members: list[list[int]]) -> list[str]:
    """All operations on each group, by its members."""
    wrong = []
    for ranks in members:
        group = dist.new_group(ranks)
        if rank not in ranks:
            continue
        cases = [
            Case(operation, shape=(size,), root=root)
            for operation in (*REDUCING, *MOVING)
            for size in (1, 5000)
            for root in (range(len(ranks)) if operation in ROOTED else (0,))
        ]
        wrong += run_cases(rank, world, cases, group)
        me = ranks.index(rank)
        got = torch.empty(3)
        right, left = ranks[(me + 1) % len(ranks)], ranks[(me - 1) % len(ranks)]
        sending: Any = dist.isend(torch.full((3,), float(rank)), right, group)
        source = dist.recv(got, None if me % 2 else left, group)
        sending.wait()
        if source != left or got[0] != left:
            wrong.append(f"rank {rank}: message in {ranks}: {got} from {source}")
        dist.destroy_process_group(group)
    return wrong


def test_every_operation_on_subgroups(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(4, backend="ringcomm").run(on_subgroups, [[1, 3], [0, 2], [1, 2, 3], [2], [0, 1, 2, 3]]))


def barrier_holds(rank: int, world: int, shared: int) -> float:
    """No rank leaves the barrier before the last has come; the store carries the proof."""
    store = dist.distributed_c10d._get_default_store()
    for turn in range(shared):
        store.add(f"came {turn}", 1)
        dist.barrier()
        if store.add(f"came {turn}", 0) != world:
            return turn
    return -1


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_nobody_leaves_a_barrier_before_all_have_come(rank_pool: Pools, world: int) -> None:
    assert rank_pool(world).run(with_group, barrier_holds, 50) == [-1] * world


def with_group(rank: int, world: int, body, *args):  # type: ignore[no-untyped-def]
    import ringcomm  # noqa: F401

    dist.init_process_group("ringcomm")
    try:
        return body(rank, world, *args)
    finally:
        dist.destroy_process_group()


def many_groups(rank: int, world: int, count: int) -> float:
    """Made, used and destroyed one after another: nothing runs out."""
    total = 0.0
    for i in range(count):
        group = dist.new_group()
        tensor = torch.full((1000,), 1.0)
        dist.all_reduce(tensor, group=group)
        total += tensor[i].item()
        dist.destroy_process_group(group)
    return total


def test_a_hundred_groups_in_turn(rank_pool: Pools) -> None:
    assert rank_pool(2, backend="ringcomm").run(many_groups, 100) == [200.0, 200.0]


def a_rank_leaves_early(rank: int, world: int) -> float:
    """A rank that sends, destroys its group and exits at once has delivered: nobody else may depend on its life."""
    import ringcomm  # noqa: F401

    dist.init_process_group("ringcomm")
    got = torch.zeros(1)
    if rank == 0:
        for _ in range(world - 1):
            part = torch.empty(1)
            dist.recv(part)
            got += part
    else:
        dist.send(torch.full((1,), float(rank)), 0)
    dist.destroy_process_group()
    return got.item()


def test_a_rank_may_leave_once_it_has_sent(rank_pool: Pools) -> None:
    pool = rank_pool(4)
    for _ in range(10):
        assert pool.run(a_rank_leaves_early)[0] == 6.0
