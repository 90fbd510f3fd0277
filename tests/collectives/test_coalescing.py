"""Blocks of calls that end in one Work: by torch's manager, by the group's methods, by batch_isend_irecv."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective_checks import Pools, nothing_wrong
from ranks import run_ranks

CPU = torch.device("cpu")
Check = Callable[[], bool]
# Typed loosely: their None is for ranks outside the group.
isend: Any = dist.isend
irecv: Any = dist.irecv
manager: Any = dist._coalescing_manager  # type: ignore[attr-defined]


def world_group() -> Any:
    return dist.group.WORLD


def full(count: int, value: float) -> torch.Tensor:
    return torch.full((count,), float(value))


def holds(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor == value).all())


def some_of_everything(rank: int, world: int, count: int, group: Any = None) -> list[tuple[str, Check]]:
    """Starts calls of every kind, waits for none, and says how to check each."""
    right, left = (rank + 1) % world, (rank - 1) % world
    options: Any = {"group": group, "async_op": True}
    got, summed, rooted = full(count, -1), full(count, rank + 1), full(count, rank)
    parts, scattered = [full(count, -1) for _ in range(world)], full(count, -1)
    swapped = torch.empty(world * count)
    irecv(got, left, group=group, tag=3)
    dist.all_reduce_coalesced([summed], group=group, async_op=True)
    dist.broadcast(rooted, 0, **options)
    isend(full(count, 100 + rank), right, group=group, tag=3)
    dist.all_gather(parts, full(count, rank), **options)
    dist.reduce_scatter(scattered, [full(count, r) for r in range(world)], **options)
    dist.all_to_all_single(swapped, full(world * count, rank), **options)
    dist.barrier(group=group, async_op=True)
    return [
        ("recv", lambda: holds(got, 100 + left)),
        ("all_reduce", lambda: holds(summed, world * (world + 1) / 2)),
        ("broadcast", lambda: holds(rooted, 0)),
        ("all_gather", lambda: all(holds(p, r) for r, p in enumerate(parts))),
        ("reduce_scatter", lambda: holds(scattered, rank * world)),
        ("all_to_all", lambda: all(holds(p, r) for r, p in enumerate(swapped.chunk(world)))),
    ]


def wrong(checks: list[tuple[str, Check]], where: str) -> list[str]:
    return [f"{where}: {what}" for what, right in checks if not right()]


def by_the_groups_methods(rank: int, world: int, count: int) -> list[str]:
    group = world_group()
    group._start_coalescing(CPU)
    checks = some_of_everything(rank, world, count)
    work = group._end_coalescing(CPU)
    work.wait()
    assert work.is_completed() and work.is_success() and work._get_duration() > 0
    return wrong(checks, "methods")


def by_the_manager(rank: int, world: int, count: int) -> list[str]:
    with manager(device=CPU, async_ops=True) as block:
        checks = some_of_everything(rank, world, count)
    assert len(block.works) == 1
    block.wait()
    with manager(device=CPU):
        waited = some_of_everything(rank, world, count)
    return wrong(checks, "async") + wrong(waited, "waited")


def by_its_future(rank: int, world: int, count: int) -> list[str]:
    """On the callback's thread everything is there."""
    group = world_group()
    group._start_coalescing(CPU)
    checks = some_of_everything(rank, world, count)
    work = group._end_coalescing(CPU)
    seen: list[str] = []
    work.get_future().then(lambda future: seen.extend(wrong(checks, "future"))).wait()
    assert work.get_future_result().wait() == 0
    return seen


@pytest.mark.parametrize("count", [3, 40_000])
@pytest.mark.parametrize("way", [by_the_groups_methods, by_the_manager, by_its_future])
@pytest.mark.parametrize("world", [1, 3])
def test_a_block_of_everything_is_one_work(rank_pool: Pools, world: int, way: Any, count: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(way, count))


def fast_paths(rank: int, world: int, device: torch.device | None) -> list[str]:
    """The three operations that torch collects itself, with and without a device."""
    n, total = world, world * (world + 1) / 2
    with manager(device=device, async_ops=True) as block:
        reduced = [full(c, rank + 1) for c in (1, 100, 70_000)]
        for tensor in reduced:
            dist.all_reduce(tensor)
    block.wait()
    # all_gather_single in torch 2.13; before and after, all_gather_into_tensor
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    with manager(device=device):
        gathered = [torch.empty(n * c) for c in (1, 5000)]
        for tensor in gathered:
            gather(tensor, full(tensor.numel() // n, rank))
    with manager(device=device):
        scattered = [torch.empty(c) for c in (1, 5000)]
        for tensor in scattered:
            scatter(tensor, full(tensor.numel() * n, rank + 1))
    checks: list[tuple[str, Check]] = [
        ("all_reduce", lambda: all(holds(t, total) for t in reduced)),
        ("all_gather", lambda: all(holds(p, r) for t in gathered for r, p in enumerate(t.chunk(n)))),
        ("reduce_scatter", lambda: all(holds(t, total) for t in scattered)),
    ]
    return wrong(checks, str(device))


@pytest.mark.parametrize("device", [None, CPU])
def test_the_manager_with_and_without_device(rank_pool: Pools, device: torch.device | None) -> None:
    nothing_wrong(rank_pool(3, backend="ringcomm").run(fast_paths, device))


def batches(rank: int, world: int, count: int) -> list[str]:
    """Every pair, oneself too, two tags each, in a shuffled order of sends and receives: one Work."""
    tensors = {(p, tag): torch.empty(count) for p in range(world) for tag in (0, 1)}

    def value(source: int, target: int, tag: int) -> int:
        return 100 * source + 10 * target + tag

    for turn in range(3):
        operations = [dist.P2POp(isend, full(count, value(rank, p, tag) + turn), p, tag=tag) for p, tag in tensors] + [
            dist.P2POp(irecv, tensor, p, tag=tag) for (p, tag), tensor in tensors.items()
        ]
        random.Random(turn * world + rank).shuffle(operations)
        (work,) = dist.batch_isend_irecv(operations)
        work.wait()
        bad = [key for key, t in tensors.items() if not holds(t, value(key[0], rank, key[1]) + turn)]
        if bad:
            return [f"rank {rank}, turn {turn}: {bad}"]
    return []


@pytest.mark.parametrize("count", [1, 5000, 100_000])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_batch_of_messages_in_any_order_is_one_work(rank_pool: Pools, world: int, count: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(batches, count))


def empty_and_nested(rank: int, world: int) -> list[str]:
    group = world_group()
    group._start_coalescing(CPU)
    empty = group._end_coalescing(CPU)
    empty.wait()
    assert empty.is_completed() and empty.get_future().wait() == [] and empty._get_duration() == 0
    outer_tensor, inner_tensor = full(70_000, 1), full(70_000, 2)
    group._start_coalescing(CPU)
    dist.all_reduce_coalesced([outer_tensor], async_op=True)
    group._start_coalescing(CPU)
    dist.all_reduce_coalesced([inner_tensor], async_op=True)
    inner, outer = group._end_coalescing(CPU), group._end_coalescing(CPU)
    outer.wait()
    assert inner.is_completed()
    ok = holds(outer_tensor, world) and holds(inner_tensor, 2 * world)
    try:
        group._end_coalescing(CPU)
    except RuntimeError as error:
        return [] if ok and "without start_coalescing" in str(error) else [str(error)]
    return ["an end without a start was accepted"]


def test_empty_and_nested_blocks(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(2, backend="ringcomm").run(empty_and_nested))


def left_by_an_exception(rank: int, world: int) -> list[str]:
    """The calls made before it go on; later ones are not the block's, and what they used is not held for ever."""
    group = world_group()
    early = full(1000, 1)
    for mistake in range(40):
        try:
            with manager(device=CPU):
                dist.broadcast(early, 0, async_op=True)
                dist.broadcast(torch.ones(3).to_sparse(), 0)  # refused by us
                if mistake % 2:
                    raise KeyError("the user's own")
        except (KeyError, ValueError, RuntimeError):
            # torch leaves its list behind, and collects every later all_reduce in it, for any backend (docs/c10d.md)
            dist.distributed_c10d._world.pg_coalesce_state.pop(group, None)
    kept = []
    for turn in range(100):
        tensor = full(1000, rank + turn)
        dist.broadcast(tensor, 1)
        if not holds(tensor, 1 + turn):
            return [f"rank {rank}: broadcast {turn}"]
        kept.append(weakref.ref(tensor.untyped_storage()))
    del tensor
    gc.collect()
    alive = sum(ref() is not None for ref in kept)
    with manager(device=CPU, async_ops=True) as block:
        checks = some_of_everything(rank, world, 300)
    block.wait()
    return wrong(checks, "afterwards") + ([f"{alive} tensors are still held"] if alive > 20 else [])


def test_a_block_left_by_an_exception_leaves_a_working_group(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(3, backend="ringcomm").run(left_by_an_exception))


def threads(rank: int, world: int) -> list[str]:
    """Each thread has blocks on a group of its own and, with messages, on the group they share."""
    groups = [dist.new_group() for _ in range(3)]
    found: list[str] = []

    def body(index: int) -> None:
        peer = rank ^ 1
        for turn in range(20):
            shared, got = world_group(), torch.empty(20_000)
            groups[index]._start_coalescing(CPU)
            shared._start_coalescing(CPU)
            irecv(got, peer, tag=index)
            checks = some_of_everything(rank, world, 500, groups[index])
            isend(full(20_000, 10 * rank + index), peer, tag=index)
            works = groups[index]._end_coalescing(CPU), shared._end_coalescing(CPU)
            for work in works:
                work.wait()
            found.extend(wrong(checks, f"thread {index} turn {turn}"))
            if not holds(got, 10 * peer + index):
                found.append(f"thread {index} turn {turn}: message")

    started = [threading.Thread(target=body, args=(i,)) for i in range(3)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return found


def test_threads_have_blocks_of_their_own(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(2, backend="ringcomm").run(threads))


def not_the_others(rank: int, world: int) -> list[str]:
    """A call of another thread is not in this thread's block."""
    group = world_group()
    got = torch.empty(4)
    group._start_coalescing(CPU)
    pending: list[Any] = []
    thread = threading.Thread(target=lambda: pending.append(irecv(got, rank ^ 1, tag=9)))
    thread.start()
    thread.join()
    work = group._end_coalescing(CPU)
    empty = work.is_completed()
    dist.barrier()
    isend(full(4, rank), rank ^ 1, tag=9).wait()
    pending[0].wait()
    return [] if empty else ["the block waited for another thread's receive"]


def test_calls_of_other_threads_are_not_in_the_block(rank_pool: Pools) -> None:
    nothing_wrong(rank_pool(2, backend="ringcomm").run(not_the_others))


def one_fails(rank: int, world: int) -> tuple[str, int] | None:
    dist.init_process_group("ringcomm")
    world_group().set_timeout(timedelta(seconds=1))
    if rank == 1:
        dist.all_reduce(torch.ones(2))
        dist.distributed_c10d._get_default_store().wait(["done"])
        return None
    with manager(device=CPU, async_ops=True) as block:
        dist.all_reduce_coalesced([torch.ones(2)], async_op=True)
        irecv(torch.empty(5), 1)
    work = block.works[0]
    try:
        work.wait()
        text = "nothing was raised"
    except dist.DistBackendError as error:
        text = str(error)
    code = work.get_future_result().wait()
    dist.distributed_c10d._get_default_store().set("done", "")
    assert work.is_completed() and not work.is_success()
    return text, code


def test_what_fails_in_a_block_is_raised_by_its_work() -> None:
    result = run_ranks(one_fails, 2)[0]
    assert result is not None and " Timed out " in result[0] and "recv" in result[0] and result[1] == 1, result


def test_a_block_under_detail_debug_mode() -> None:
    env: dict[str, str | None] = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    nothing_wrong(run_ranks(in_detail, 2, env=env, timeout=120))


def in_detail(rank: int, world: int) -> list[str]:
    dist.init_process_group("ringcomm")
    result = batches(rank, world, 50) + by_the_manager(rank, world, 50)
    dist.destroy_process_group()
    return result
