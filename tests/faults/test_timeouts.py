"""Every wait has a deadline, whoever sets it; a wait that gives up early leaves the call alone."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faulty import LATE, Failure, all_reduce, allowed, failure, start
from ranks import run_ranks

SHORT = 1.5
LONG = 60.0


def group_timeout(rank: int, world: int, how: str) -> Any:
    """Rank 1 never makes the call; rank 0 has a short time-out from one of the places where one can be given."""
    store = start(timeout=SHORT if how == "init" else LONG, at_init=True)
    group = dist.new_group(timeout=timedelta(seconds=SHORT)) if how == "new_group" else dist.group.WORLD
    assert group is not None
    if rank == 1:
        store.wait(["over"], timedelta(seconds=30))
        return None
    backend = group._get_backend(torch.device("cpu"))
    if how in ("set_timeout", "recv"):
        backend._set_default_timeout(timedelta(seconds=SHORT))
    calls: dict[str, Any] = {
        "barrier": barrier_with_timeout,
        "recv": lambda group: dist.recv(torch.ones(1), 1, group=group),
    }
    call = calls.get(how, lambda group: all_reduce(group=group))
    found = failure(lambda: call(group))
    store.set("over", "1")
    return found, backend.get_error().name


def barrier_with_timeout(group: Any) -> None:
    options = dist.BarrierOptions()
    options.timeout = timedelta(seconds=SHORT)
    group.barrier(options).wait()


@pytest.mark.parametrize("how", ["init", "new_group", "set_timeout", "barrier", "recv"])
def test_the_timeout_is_kept_wherever_it_is_set(how: str) -> None:
    found, error = run_ranks(group_timeout, 2, how)[0]
    assert " Timed out after " in found.text and "rank 1 (host" in found.text
    assert SHORT - 0.1 < found.seconds < SHORT + allowed(LATE)
    assert error == "TIMEOUT"


def wait_gives_up(rank: int, world: int, kind: str) -> Any:
    start(timeout=LONG)
    all_reduce()
    tensor = torch.full((4,), float(rank))
    if rank == 1:
        time.sleep(SHORT + 1.0)
        if kind == "collective":
            dist.all_reduce(tensor)
        else:
            dist.send(tensor, 0)
        return None
    work = dist.all_reduce(tensor, async_op=True) if kind == "collective" else dist.irecv(tensor, 1)
    assert work is not None
    found = failure(lambda: work.wait(timedelta(seconds=SHORT)))
    done = work.is_completed()
    work.wait()
    return found, done, tensor.tolist()


@pytest.mark.parametrize("kind", ["collective", "message"])
def test_a_wait_that_gives_up_leaves_the_call_alone(kind: str) -> None:
    found, done, values = run_ranks(wait_gives_up, 2, kind)[0]
    assert " Timed out after " in found.text and "the call itself goes on" in found.text
    assert "rank 1 (host" in found.text
    assert SHORT - 0.1 < found.seconds < SHORT + allowed(LATE)
    assert not done and values == [1.0] * 4


def nobody_waits(rank: int, world: int) -> Any:
    store = start(timeout=SHORT)
    if rank == 1:
        store.wait(["over"], timedelta(seconds=30))
        return None
    group = dist.group.WORLD
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    works = [all_reduce(count, async_op=True) for count in (4, 1 << 20)]
    future = works[1].get_future()
    before = backend.get_error().name
    began = time.monotonic()
    while backend.get_error().name == "SUCCESS" and time.monotonic() < began + 10:
        time.sleep(0.01)
    seconds = time.monotonic() - began
    of_future = failure(future.wait)
    store.set("over", "1")
    return (
        before,
        backend.get_error().name,
        seconds,
        of_future,
        [w.is_completed() for w in works],
        failure(works[0].wait),
    )


def test_calls_nobody_waits_for_time_out_too() -> None:
    before, after, seconds, of_future, completed, of_wait = run_ranks(nobody_waits, 2)[0]
    assert (before, after) == ("SUCCESS", "TIMEOUT")
    assert SHORT - 0.2 < seconds < SHORT + allowed(LATE)
    assert " Timed out after " in of_future.text and " Timed out after " in of_wait.text
    assert completed == [True, True]


def short_behind_long(rank: int, world: int) -> Failure | None:
    store = start(timeout=LONG)
    if rank == 1:
        store.wait(["over"], timedelta(seconds=30))
        return None
    group = dist.group.WORLD
    first = all_reduce(async_op=True)
    options = dist.BarrierOptions()
    options.timeout, options.asyncOp = timedelta(seconds=SHORT), True
    assert group is not None
    group.barrier(options)
    found = failure(first.wait)
    store.set("over", "1")
    return found


def test_a_short_timeout_counts_behind_a_long_one() -> None:
    found = run_ranks(short_behind_long, 2)[0]
    assert "barrier #2" in found.text and found.seconds < SHORT + allowed(LATE)


def never(rank: int, world: int) -> float:
    start(timeout=60)
    group = dist.new_group(timeout=timedelta(days=365_000))  # past what nanoseconds in 64 bits can count
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def test_a_timeout_that_is_practically_never() -> None:
    assert run_ranks(never, 2) == [2.0, 2.0]


def no_time(rank: int, world: int) -> list[str]:
    start()
    told = []
    for seconds in (0, -1):
        try:
            dist.new_group(timeout=timedelta(seconds=seconds))
        except ValueError as error:
            told.append(str(error))
    total = torch.ones(2)
    dist.all_reduce(total)
    return [*told, str(total[0].item())]


def test_a_group_without_time_is_refused() -> None:
    for first, second, total in run_ranks(no_time, 2):
        assert first.endswith("is 0:00:00; it must be above zero") and "must be above zero" in second, (first, second)
        assert total == "2.0"
