"""Callbacks of futures may do anything: wait for other futures, for collectives, fail, block each other."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from faulty import all_reduce, failure, finish, script, start
from ranks import run_ranks


def waits_in_callbacks(rank: int, world: int) -> list[float]:
    start()
    values: list[float] = []

    def second(future: Any) -> float:
        tensor = torch.ones(4)
        dist.all_reduce(tensor)  # a collective inside a callback
        other = torch.ones(4)
        dist.all_reduce(other, async_op=True).get_future().wait()  # a future inside a callback
        values.extend([tensor[0].item(), other[0].item()])
        return 1.0

    for _ in range(20):
        dist.all_reduce(torch.ones(4), async_op=True).get_future().then(second).wait()
    return values


def test_a_callback_may_wait_for_calls_and_futures() -> None:
    for values in run_ranks(waits_in_callbacks, 3):
        assert values == [3.0] * 40


def error_reaches_callbacks(rank: int, world: int) -> Any:
    store = start(timeout=2.0)
    if rank == 1:
        store.wait(["over"], timedelta(seconds=30))
        return None
    seen = []

    def look(future: Any) -> None:
        seen.append(failure(future.value).text)

    future = all_reduce(async_op=True).get_future().then(look)
    future.wait()
    store.set("over", "1")
    return seen


def test_a_callback_sees_the_error_of_its_call() -> None:
    (text,) = run_ranks(error_reaches_callbacks, 2)[0]
    assert " Timed out after " in text and "rank 1 (host" in text


def test_more_callbacks_than_threads_that_wait_for_each_other() -> None:
    """64 threads are all there are; a warning says what is wrong, and calls that are waited for by Work.wait go on."""
    text = """
        init()
        last = threading.Event()
        def callback(i):
            def run(future):
                if i == 69:
                    last.set()
                last.wait(5)
            return run
        group = dist.group.WORLD
        works = [group.recv([torch.ones(4)], 0, tag) for tag in range(70)]
        futures = [work.get_future().then(callback(i)) for i, work in enumerate(works)]
        for tag in range(70):
            group.send([torch.ones(4)], 0, tag).wait()
        for work in works:
            work.wait()
        print(last.is_set(), flush=True)
        for future in futures:
            future.wait()
        print(last.is_set(), flush=True)
    """
    code, out, err = finish(script(text), timeout=60)
    # The first 64 wait in vain for the 70th until they give up; then its turn comes.
    assert code == 0 and out == "False\nTrue\n"
    assert err.count("all 64 callback threads are inside callbacks") == 1


def dropped(rank: int, world: int) -> int:
    start()
    for i in range(2000):
        dist.all_reduce(torch.ones(1000), async_op=True)
        if i % 2:
            dist.all_gather([torch.ones(50) for _ in range(world)], torch.ones(50), async_op=True).get_future()
    dist.barrier()
    names = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return names.count("rc-callback")


def test_short_callbacks_do_not_take_all_threads() -> None:
    """What nobody waits for ends on a callback thread; a burst of it is not taken for callbacks that wait."""
    assert all(0 < threads < 20 for threads in run_ranks(dropped, 2))


def blocked_callbacks(rank: int, world: int) -> float:
    start()
    release = threading.Event()
    if rank == 0:
        time.sleep(1.0)
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(70)]
    # Only where the calls are still pending: the callback of a call that is over runs here, on this thread.
    futures = [work.get_future().then(lambda f: release.wait(10)) for work in works if rank == 1]
    for work in works:
        work.wait()
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    release.set()
    for future in futures:
        future.wait()
    return tensor[0].item()


def test_calls_go_on_while_all_callback_threads_are_taken() -> None:
    assert run_ranks(blocked_callbacks, 2) == [2.0, 2.0]
