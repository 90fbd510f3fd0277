"""The root of a broadcast or scatter ends when the others have what it sent: a rank that never came is noticed."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faulty import HOST, NOTICED, all_reduce, allowed, failure, meet, start
from ranks import run_ranks


def call(what: str, count: int, root: int) -> None:
    tensor = torch.full((count,), float(dist.get_rank()))
    if what == "broadcast":
        dist.broadcast(tensor, root)
    else:
        parts = [tensor.clone() for _ in range(dist.get_world_size())] if dist.get_rank() == root else None
        dist.scatter(tensor, parts, root)
    assert (tensor == root).all()


def fail_before_the_call(rank: int, world: int, what: str, count: int) -> Any:
    store = start()
    all_reduce()
    meet(store, "through")
    if rank == 1:
        time.sleep(0.2)
        dist.destroy_process_group()  # as after an exception of its own
        time.sleep(allowed(NOTICED) + 1)
        return None
    found = failure(lambda: call(what, count, 0))
    return found.text, found.seconds


@pytest.mark.parametrize("what", ["broadcast", "scatter"])
@pytest.mark.parametrize("count", [2, 5000], ids=["line", "slot"])
def test_the_root_names_the_rank_that_never_came(what: str, count: int) -> None:
    text, seconds = run_ranks(fail_before_the_call, 2, what, count)[0]
    assert f"rank 1 (host {HOST}, pid " in text and "has left" in text and what in text
    assert seconds < allowed(NOTICED)


def one_late(rank: int, world: int, what: str) -> float:
    start()
    all_reduce()
    if rank == 1:
        time.sleep(0.5)
    began = time.monotonic()
    call(what, 10, 0)
    return time.monotonic() - began


@pytest.mark.parametrize("what", ["broadcast", "scatter"])
def test_only_the_root_waits_for_a_late_rank(what: str) -> None:
    root, late, early = run_ranks(one_late, 3, what)
    assert root > 0.3
    assert early < root  # it has what it came for as soon as the root has sent it
    assert late < root


def roots_in_turn(rank: int, world: int) -> list[float]:
    """Roots that wait do not wait for each other."""
    start()
    found = []
    for k in range(60):
        tensor = torch.full((3 if k % 2 else 40_000,), float(rank + k))
        works = [dist.broadcast(tensor.clone(), root, async_op=True) for root in range(world)]
        for root, work in enumerate(works):
            work.wait()
            found.append(work.result()[0][0].item() - (root + k))
    return found


def test_roots_that_take_turns_do_not_block_each_other() -> None:
    assert run_ranks(roots_in_turn, 3) == [[0.0] * 180] * 3
