"""What a group tells of its works: completion hooks, durations, sequence numbers, results; and set_timeout."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import RankPool, run_ranks

Pools = Callable[..., RankPool]
isend: Any = dist.isend
irecv: Any = dist.irecv


def new_group(**kwargs: Any) -> Any:
    return dist.new_group(backend="ringcomm", **kwargs)


def cpu_backend(group: Any) -> Any:
    return group._get_backend(torch.device("cpu"))


def every_work(rank: int, world: int) -> tuple[dict[str, int], list[int], bool, bool]:
    """Waited for, dropped, large, strided, messages: the hook hears of each once, one at a time, off this thread."""
    group = new_group()
    seen: list[Any] = []
    inside, overlapped, threads = [0], [False], set()

    def hook(info: Any) -> None:
        inside[0] += 1
        overlapped[0] |= inside[0] > 1
        threads.add(threading.get_ident())
        time.sleep(0.001)
        seen.append(info)
        inside[0] -= 1

    group._register_on_completion_hook(hook)
    for turn in range(10):
        dist.all_reduce(torch.ones(3), group=group)
        dist.broadcast(torch.ones(100_000), 0, group=group, async_op=True)
        dist.all_gather([torch.empty(2, 4).t() for _ in range(world)], torch.ones(4, 2), group=group)
        receiving = irecv(torch.empty(4), group=group, group_src=(rank - 1) % world, tag=turn)
        isend(torch.ones(4), group=group, group_dst=(rank + 1) % world, tag=turn)
        receiving.wait()
    group._wait_for_pending_works()
    kinds = Counter(info.op_type.name for info in seen)
    numbers = [info.seq for info in seen if info.op_type.name == "ALLREDUCE"]
    spans = [(info.time_finished - info.time_started, info.active_duration) for info in seen]
    times_ok = all(span >= timedelta(0) and abs(span - active) < timedelta(milliseconds=1) for span, active in spans)
    apart = not overlapped[0] and threading.get_ident() not in threads
    dist.destroy_process_group(group)
    return dict(kinds), numbers, times_ok, apart


@pytest.mark.parametrize("world", [1, 3])
def test_the_hook_hears_of_every_work_once(rank_pool: Pools, world: int) -> None:
    for kinds, numbers, times_ok, apart in rank_pool(world, backend="ringcomm").run(every_work):
        assert kinds == {"ALLREDUCE": 10, "BROADCAST": 10, "ALLGATHER": 10, "SEND": 10, "RECV": 10}
        assert len(set(numbers)) == 10
        assert times_ok and apart


def destroyed_in_time(rank: int, world: int) -> list[int]:
    """destroy_process_group returns after the last hook, though the last work takes until the other rank comes."""
    group = new_group()
    seen: list[int] = []
    group._register_on_completion_hook(lambda info: seen.append(info.seq))
    for turn in range(5):
        if rank == 1 and turn == 4:
            time.sleep(0.4)
        dist.all_reduce(torch.ones(1000), group=group, async_op=True)
    dist.destroy_process_group(group)
    return sorted(seen)


def test_destroy_waits_for_pending_works_and_their_hooks(rank_pool: Pools) -> None:
    assert rank_pool(2, backend="ringcomm").run(destroyed_in_time) == [[1, 2, 3, 4, 5]] * 2


def destroyed_by_a_hook(rank: int, world: int) -> bool:
    dist.init_process_group("ringcomm")
    group, destroyed = new_group(), threading.Event()

    def hook(info: Any) -> None:
        dist.destroy_process_group(group)
        destroyed.set()

    group._register_on_completion_hook(hook)
    dist.all_reduce(torch.ones(2), group=group)
    done = destroyed.wait(30)
    dist.destroy_process_group()
    return done


def test_a_hook_may_destroy_its_group() -> None:
    assert run_ranks(destroyed_by_a_hook, 2) == [True] * 2


def of_failures(rank: int, world: int) -> tuple[list[str], int, str]:
    """A work that fails has ended too; a hook that raises harms nobody; a second hook is refused."""
    dist.init_process_group("ringcomm")
    group = new_group()
    calls: list[str] = []

    def hook(info: Any) -> None:
        calls.append(info.op_type.name)
        raise ValueError("this hook always raises")

    group._register_on_completion_hook(hook)
    try:
        group._register_on_completion_hook(hook)
        refused = ""
    except RuntimeError as error:
        refused = str(error)
    dist.all_reduce(torch.ones(2), group=group)
    group.set_timeout(timedelta(seconds=0.5))
    if rank == 1:
        dist.barrier()
        return [], 0, ""
    work: Any = dist.broadcast(torch.ones(2), 0, group=group, async_op=True)
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    code = work.get_future_result().wait()
    group._wait_for_pending_works()
    dist.barrier()
    return calls, code, refused


def test_failed_works_are_told_of_and_hooks_may_raise() -> None:
    calls, code, refused = run_ranks(of_failures, 2)[0]
    assert sorted(calls) == ["ALLREDUCE", "ALLREDUCE", "BROADCAST"]
    assert code == 1  # WorkResult::TIMEOUT
    assert "has a completion hook already" in refused


def timing(rank: int, world: int) -> tuple[float, int, list[int]]:
    group = new_group()
    group._enable_collectives_timing()
    dist.all_reduce(torch.ones(4), group=group)
    if rank == 1:
        time.sleep(0.2)
    work: Any = dist.all_reduce(torch.ones(4), group=group, async_op=True)
    work.wait()
    slow = work._get_duration()
    result = work.get_future_result()
    backend = cpu_backend(group)
    before = backend._get_sequence_number_for_group()
    dist.barrier(group=group)
    numbers = [before, backend._get_sequence_number_for_group()]
    dist.destroy_process_group(group)
    return slow, result.wait(), numbers


def test_durations_results_and_sequence_numbers(rank_pool: Pools) -> None:
    first, second = rank_pool(2, backend="ringcomm").run(timing)
    assert first[0] > 150  # milliseconds: it waited for the other rank
    for result in (first, second):
        assert result[1:] == (0, [2, 3])


def shorter(rank: int, world: int) -> tuple[float, str] | None:
    """set_timeout is for later calls; the barrier of another group shows that this one alone has it."""
    dist.init_process_group("ringcomm", timeout=timedelta(seconds=60))
    group = new_group()
    group.set_timeout(timedelta(seconds=0.5))
    cpu_backend(group).set_timeout(timedelta(seconds=0.6))
    if rank == 1:
        dist.barrier()
        return None
    began = time.monotonic()
    try:
        dist.all_reduce(torch.ones(2), group=group)
        text = "nothing"
    except dist.DistBackendError as error:
        text = str(error)
    took = time.monotonic() - began
    dist.barrier()
    return took, text


def test_set_timeout() -> None:
    result = run_ranks(shorter, 2)[0]
    # The time-out counts from the call, the message from when the call had been taken: a busy machine has both.
    assert result is not None and 0.6 <= result[0] < 0.6 + 1, result
    assert re.search(r" Timed out after 0\.[56] s ", result[1]), result


def hooked_at_exit(rank: int, world: int) -> str:
    """A process that ends with works under way and a hook that would want the interpreter ends well."""
    dist.init_process_group("ringcomm")
    group: Any = dist.group.WORLD
    group._register_on_completion_hook(lambda info: time.sleep(0.01))
    for _ in range(50):
        dist.all_reduce(torch.ones(4), async_op=True)
    return "left"


def test_a_process_may_end_while_hooks_are_due() -> None:
    assert run_ranks(hooked_at_exit, 2) == ["left"] * 2
