"""Asynchronous calls: waited for in any order, by Work or by Future, from callbacks, from threads, on many groups."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collective_checks import Pools, nothing_wrong

SIZES = (1, 14, 3000, 70_000)


def in_any_order(rank: int, world: int, by: str, seed: int) -> list[str]:
    """40 mixed calls in flight; each rank waits in its own order."""
    wrong = []
    shuffled = random.Random(seed * 100 + rank)
    calls: list[tuple[Any, Tensor, float]] = []
    for i in range(40):
        size = SIZES[i % len(SIZES)]
        tensor = torch.full((size,), float(rank + i))
        if i % 3 == 0:
            calls.append((dist.all_reduce(tensor, async_op=True), tensor, world * (world - 1) / 2 + world * i))
        elif i % 3 == 1:
            calls.append((dist.broadcast(tensor, i % world, async_op=True), tensor, float(i % world + i)))
        else:
            output = torch.empty(size)
            parts = [torch.full((size,), float(rank + i + p)) for p in range(world)]
            work = dist.reduce_scatter(output, parts, async_op=True)
            calls.append((work, output, world * (world - 1) / 2 + world * (i + rank)))
    shuffled.shuffle(calls)
    for work, tensor, wanted in calls:
        if by == "future":
            value = work.get_future().wait()
            if len(value) != 1 or value[0].data_ptr() != tensor.data_ptr():
                wrong.append(f"rank {rank}: the future's value is {value}")
        elif by == "polling":
            while not work.is_completed():
                pass
        else:
            work.wait()
        if not (tensor == wanted).all():
            wrong.append(f"rank {rank}: {tensor[:3]} should be {wanted}")
    return wrong


@pytest.mark.parametrize("by", ["work", "future", "polling"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_waits_in_any_order(rank_pool: Pools, world: int, by: str) -> None:
    for seed in range(3):
        nothing_wrong(rank_pool(world, backend="ringcomm").run(in_any_order, by, seed))


def works_dropped(rank: int, world: int) -> list[str]:
    """Nobody keeps the Work, the inputs or the outputs; the calls complete all the same, in order."""
    last = torch.full((1000,), 1.0)
    for i in range(50):
        dist.all_reduce(torch.full((5000,), float(i)), async_op=True)
        dist.isend(torch.full((5000,), float(i)), (rank + 1) % world)
    dist.all_reduce(last)
    wrong = [] if (last == world).all() else [f"rank {rank}: {last[:3]}"]
    for i in range(50):
        got = torch.empty(5000)
        dist.recv(got, (rank - 1) % world)
        if not (got == i).all():
            wrong.append(f"rank {rank}: message {i}: {got[:3]}")
    return wrong


@pytest.mark.parametrize("world", [2, 3])
def test_calls_complete_when_everything_is_dropped(rank_pool: Pools, world: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(works_dropped))


def chain_of_callbacks(rank: int, world: int) -> list[float]:
    """Each callback issues the next collective and waits for it: what comm hooks such as PowerSGD do."""

    def again(future: Any) -> Tensor:
        tensor = future.value()[0] / world
        dist.all_reduce(tensor)
        return tensor + 1

    def once_more(future: Any) -> Tensor:
        tensor = future.value()
        return dist.all_reduce(tensor, async_op=True).get_future().wait()[0]

    futures = []
    for i in range(10):
        work = dist.all_reduce(torch.full((2000,), float(i)), async_op=True)
        # In one chain per call, and calls of one chain after those of the last: every rank issues in the same order.
        futures.append(work.get_future().then(again).then(once_more).wait()[0].item())
    return futures


@pytest.mark.parametrize("world", [2, 3])
def test_callbacks_issue_and_wait_for_collectives(rank_pool: Pools, world: int) -> None:
    wanted = [float((i * world + 1) * world) for i in range(10)]
    assert rank_pool(world, backend="ringcomm").run(chain_of_callbacks) == [wanted] * world


def callbacks_on_strided_tensors(rank: int, world: int) -> list[str]:
    """The value is in the caller's own strided tensor by the time a callback runs."""
    base = torch.full((1000, 2), float(rank))
    seen = dist.all_reduce(base[:, 1], async_op=True).get_future().then(lambda f: f.value()[0].clone()).wait()
    wanted = world * (world - 1) / 2
    good = (seen == wanted).all() and (base[:, 1] == wanted).all() and (base[:, 0] == rank).all()
    return [] if good else [f"rank {rank}: {seen[:3]} {base[:3]}"]


def test_futures_of_strided_tensors(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(2, backend="ringcomm").run(callbacks_on_strided_tensors))


def groups_from_threads(rank: int, world: int) -> list[str]:
    """A group per thread, each at its own pace, while the main thread uses the default group."""
    groups = [dist.new_group() for _ in range(4)]
    wrong: list[str] = []

    def loop(index: int, group: Any) -> None:
        for i in range(60):
            tensor = torch.full((SIZES[(i + index) % len(SIZES)],), float(i * (index + 1)))
            work = dist.all_reduce(tensor, group=group, async_op=i % 2 == 0)
            if work is not None:
                work.wait()
            if not (tensor == i * (index + 1) * world).all():
                wrong.append(f"rank {rank}: thread {index}, call {i}: {tensor[:3]}")

    threads = [threading.Thread(target=loop, args=pair) for pair in enumerate(groups)]
    for thread in threads if rank % 2 == 0 else reversed(threads):
        thread.start()
    loop(len(groups), None)
    for thread in threads:
        thread.join()
    for group in groups:
        dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize("world", [2, 3, 4])
def test_several_groups_from_several_threads(rank_pool: Pools, world: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(groups_from_threads, timeout=120))


def interleaved_groups(rank: int, world: int) -> list[str]:
    """Two groups used in opposite orders by different ranks: they share nothing, so nobody waits."""
    first, second = dist.new_group(), dist.new_group()
    wrong = []
    for i in range(20):
        a, b = torch.full((20_000,), 1.0 + i), torch.full((20_000,), 2.0 + i)
        order = [(a, first), (b, second)]
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in (order if rank % 2 else reversed(order))]
        for work in works:
            work.wait()
        if not ((a == world * (1 + i)).all() and (b == world * (2 + i)).all()):
            wrong.append(f"rank {rank}: {i}: {a[:2]} {b[:2]}")
    dist.destroy_process_group(first)
    dist.destroy_process_group(second)
    return wrong


def test_groups_may_be_used_in_any_order(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(4, backend="ringcomm").run(interleaved_groups))
