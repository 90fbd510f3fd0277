"""abort() from another thread: whoever waits gets out with an error, here and on the other ranks."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faulty import HOST, LEFT, all_reduce, allowed, destroy_seconds, failure, meet, start
from ranks import run_ranks


def abort_backend() -> None:
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()  # type: ignore[union-attr]


def abort_group() -> None:
    dist.distributed_c10d._abort_process_group()


WAYS = {f.__name__: f for f in (abort_backend, abort_group)}


def abort_while_waiting(rank: int, world: int, way: str, future: bool) -> Any:
    store = start()
    all_reduce()
    if rank == 2:  # never makes the call
        store.wait(["aborted"])
        found = failure(lambda: all_reduce(1 << 18))
        return found, 0.0, destroy_seconds()
    work = all_reduce(1 << 18, async_op=True)
    if rank == 0:

        def later() -> None:
            time.sleep(0.5)
            store.set("begun", repr(time.monotonic()))
            WAYS[way]()
            store.set("aborted", "")  # only now may rank 2 come: before, its call would complete everybody's

        threading.Thread(target=later).start()
    found = failure(work.get_future().wait if future else work.wait)
    late = found.at - float(store.get("begun"))
    time.sleep(0.5)
    return found, late, destroy_seconds() if dist.is_initialized() else 0.0


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_abort_ends_every_wait(way: str, future: bool) -> None:
    results = run_ranks(abort_while_waiting, 3, way, future)
    text = results[0][0].text
    assert f"aborted by rank 0 (host {HOST}, pid " in text
    for found, late, destroy in results:
        assert found.text == text
        assert late < 2.0 and destroy < allowed(LEFT)


def destroy_while_waiting(rank: int, world: int) -> Any:
    start()
    if rank == 1:
        time.sleep(4)
        return None
    texts: list[str] = []
    work = all_reduce(async_op=True)
    waiter = threading.Thread(target=lambda: texts.append(failure(work.wait).text))
    waiter.start()
    time.sleep(0.3)
    seconds = destroy_seconds()
    waiter.join(2)
    return texts, seconds, os.getpid()


def test_destroy_ends_the_waits_of_other_threads() -> None:
    texts, seconds, _ = run_ranks(destroy_while_waiting, 2)[0]
    assert len(texts) == 1 and "destroyed on rank 0 while this call was still pending" in texts[0]
    assert seconds < allowed(LEFT)


def abort_one_of_two_groups(rank: int, world: int) -> float:
    store = start()
    doomed, kept = dist.new_group(), dist.new_group()
    all_reduce(group=doomed)
    meet(store, "through the good call")
    if rank == 0:
        doomed._get_backend(torch.device("cpu")).abort()
    failure(lambda: [all_reduce(group=doomed) for _ in range(3)])
    tensor = torch.ones(4)
    dist.all_reduce(tensor, group=kept)
    dist.destroy_process_group(doomed)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor[0].item()


def test_other_groups_do_not_suffer() -> None:
    assert run_ranks(abort_one_of_two_groups, 2) == [4.0, 4.0]


def calls_after_the_end(rank: int, world: int) -> tuple[str, str, str]:
    start()
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    all_reduce()
    backend.shutdown()
    error = backend.get_error().name
    call = failure(lambda: group.allreduce(torch.ones(4)).wait()).text  # type: ignore[union-attr]
    backend.shutdown()
    backend.abort()
    dist.destroy_process_group()
    return call, error, failure(all_reduce).kind


def test_calls_after_shutdown_say_so() -> None:
    for call, error, kind in run_ranks(calls_after_the_end, 2):
        assert "was destroyed on this rank" in call and error == "SUCCESS" and kind == "ValueError"
