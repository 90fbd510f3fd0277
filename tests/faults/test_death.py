"""A rank that dies or leaves: every survivor gets one exception that names it, in time, and lives on."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringcomm
from faulty import (
    HOST,
    LEFT,
    NOTICED,
    all_reduce,
    allowed,
    destroy_seconds,
    failure,
    kill_self,
    meet,
    named,
    signalled,
    start,
)
from ranks import Dead, run_ranks


def in_all_reduce(victim: int) -> None:
    big = torch.ones(16 << 20)  # 64 MiB: takes long enough to be killed in
    while True:
        dist.all_reduce(big)


def in_barrier(victim: int) -> None:
    if dist.get_rank() == victim:
        time.sleep(60)
    dist.barrier()


def in_recv(victim: int) -> None:
    if dist.get_rank() == victim:
        time.sleep(60)
    dist.recv(torch.ones(4), src=victim)


def in_send(victim: int) -> None:
    if dist.get_rank() == victim:
        time.sleep(60)
    dist.send(torch.ones(1 << 20), dst=victim)


def before_next(victim: int) -> None:
    time.sleep(60 if dist.get_rank() == victim else 1.0)
    all_reduce()


def in_async(victim: int) -> None:
    if dist.get_rank() == victim:
        time.sleep(60)
    all_reduce(async_op=True).get_future().wait()


def in_registered(victim: int) -> None:
    """Everyone reads the others' memory: that of the victim too, after its death."""
    big = ringcomm.empty(16 << 20).fill_(1.0)
    while True:
        dist.all_reduce(big)


def in_lending(victim: int) -> None:
    """Rank 0 has nothing left to send, but the victim has not read what it lent."""
    if dist.get_rank() == victim:
        time.sleep(60)
    dist.broadcast(ringcomm.empty(1 << 18), 0)
    all_reduce()


CASES = {
    f.__name__: f
    for f in (in_all_reduce, in_barrier, in_recv, in_send, before_next, in_async, in_registered, in_lending)
}


def survive(rank: int, world: int, victim: int, case: str, folder: str) -> dict[str, Any]:
    store = start()
    all_reduce()
    if rank == victim:
        kill_self(store, 0.4)
    first = failure(lambda: CASES[case](victim))
    second = failure(all_reduce)
    result = {"first": first, "second": second, "late": first.at - signalled(store), "name": named(store, victim)}
    result["destroy"] = destroy_seconds()
    # The survivors go on without it.
    again = dist.FileStore(os.path.join(folder, "again"), world - 1)
    start(store=again, rank=rank - (rank > victim), world_size=world - 1)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return {**result, "again": tensor[0].item()}


@pytest.mark.parametrize("case", CASES)
def test_every_survivor_names_the_killed_rank(case: str, tmp_path: Path) -> None:
    results = run_ranks(survive, 4, 2, case, str(tmp_path), expect_dead=[2])
    for result in results[:2] + results[3:]:
        first, second = result["first"], result["second"]
        assert first.kind == "DistBackendError"
        assert result["name"] + " died" in first.text
        # A call that was made before the death was noticed ends late only by what it had to do anyway.
        assert result["late"] < allowed(NOTICED) + (1.0 if case == "before_next" else 0.0), first.text
        assert second.text == first.text and second.seconds < 0.5
        assert result["destroy"] < allowed(LEFT)
        assert result["again"] == 3.0
    assert len({r["first"].text for r in results if not isinstance(r, Dead)}) == 1, "the first cause is everyone's"


def first_call_on_subgroup(rank: int, world: int, victim: int) -> Any:
    store = start()
    group = dist.new_group([0, 2])
    other = dist.new_group([0, 1])
    if rank == victim:
        kill_self(store, 0.0)
        time.sleep(60)
    time.sleep(1.0)
    if rank == 1:
        all_reduce(group=other)
        return None
    found = failure(lambda: all_reduce(group=group))
    if rank == 0:
        all_reduce(group=other)  # a group without the dead rank goes on
    return found.text, found.seconds, named(store, victim)


def test_first_call_on_a_subgroup_after_a_member_died() -> None:
    text, seconds, name = run_ranks(first_call_on_subgroup, 3, 2, expect_dead=[2])[0]
    assert name + " died" in text and "#1" in text  # rank 2 of the job, though rank 1 of the subgroup
    assert seconds < allowed(NOTICED)


def destroy_early(rank: int, world: int, leaver: int) -> Any:
    store = start()
    all_reduce()
    meet(store, "through")
    if rank == leaver:
        dist.destroy_process_group()
        time.sleep(allowed(NOTICED) + 1)  # alive: what the others see is that it left
        return None
    first = failure(lambda: [all_reduce(1 << 10) for _ in range(3)])
    return first, destroy_seconds()


def test_a_rank_that_destroys_the_group_early_is_named() -> None:
    results = run_ranks(destroy_early, 3, 1)
    for first, destroy in (results[0], results[2]):
        assert f"rank 1 (host {HOST}, pid " in first.text
        assert "has left" in first.text and "it had not made this call" in first.text
        assert first.seconds < allowed(NOTICED) and destroy < allowed(LEFT)


def send_then_end(rank: int, world: int, what: str) -> float:
    start()
    tensor = torch.full((1 << 10,), 5.0 * (rank == 0))
    if rank == 1:
        time.sleep(1.0)  # rank 0 is gone when it comes
    if what == "broadcast":
        dist.broadcast(tensor, 0)
    elif rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    if rank == 0:
        os._exit(0)
    return tensor.mean().item()


@pytest.mark.parametrize("what", ["broadcast", "send"])
def test_what_a_rank_sent_before_it_ended_still_counts(what: str) -> None:
    assert run_ranks(send_then_end, 2, what, expect_dead=[0])[1] == 5.0


def end_one_by_one(rank: int, world: int) -> float:
    start()
    all_reduce()
    time.sleep(0.3 * rank)
    tensor = torch.ones(1 << 10)
    dist.all_reduce(tensor)
    return tensor.mean().item()  # and the process ends without destroying the group


def test_ranks_may_end_one_by_one_after_the_last_call() -> None:
    assert run_ranks(end_one_by_one, 4) == [4.0] * 4
