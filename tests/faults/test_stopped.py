"""A rank that hangs but lives: the time-out is kept, and the rank that did not come is named, not those that wait."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch.distributed as dist

from faulty import LATE, LEFT, all_reduce, allowed, destroy_seconds, failure, named, signal_self, start, wake_later
from ranks import run_ranks

TIMEOUT = 3.0
STOP = 8.0
"""Seconds the silent rank is stopped: longer than the others need to time out, destroy and report."""


def stop_one(rank: int, world: int, victim: int) -> Any:
    store = start(timeout=TIMEOUT)
    all_reduce()
    if rank == victim:
        wake_later(os.getpid(), STOP)
        signal_self(store, signal.SIGSTOP, 0.2)
        time.sleep(1.0)  # stopped within, and on again STOP later
        after = failure(all_reduce)
        return after, destroy_seconds()
    time.sleep(0.5)
    first = failure(all_reduce)
    return first, destroy_seconds(), named(store, victim)


def test_the_silent_rank_is_named_at_the_timeout() -> None:
    results = run_ranks(stop_one, 4, 3)
    text = results[0][0].text
    for first, destroy, name in results[:3]:
        assert first.text == text
        assert " Timed out " in text and name + " has not made this call; its last was all_reduce #1" in text
        assert "its process is stopped" in text
        assert not any(f"rank {r} (host" in text for r in range(3)), "those that wait are not to blame"
        assert TIMEOUT - 0.1 < first.seconds < TIMEOUT + allowed(LATE)
        assert destroy < allowed(LEFT)
    # Woken up again it finds out and does not crash.
    after, destroy = results[3]
    assert after.text == text and after.seconds < 1.0 and destroy < allowed(LEFT)


def stop_in_call(rank: int, world: int) -> Any:
    store = start(timeout=TIMEOUT)
    all_reduce()
    if rank == 1:
        wake_later(os.getpid(), STOP)
        signal_self(store, signal.SIGSTOP, 0.3)
    first = failure(lambda: [all_reduce(4 << 20) for _ in range(100_000)])
    return first, destroy_seconds(), named(store, 1)


def test_a_rank_stopped_inside_a_call_is_named() -> None:
    results = run_ranks(stop_in_call, 3)
    for first, destroy, name in results:
        assert " Timed out " in first.text and name in first.text and "its process is stopped" in first.text
        assert destroy < allowed(LEFT)


def busy(rank: int, world: int) -> Any:
    start(timeout=TIMEOUT)
    if rank == 0:
        time.sleep(TIMEOUT + 1.5)
        return failure(all_reduce)
    return failure(all_reduce)


def test_a_rank_that_is_late_is_named_and_not_called_stopped() -> None:
    late, waiting = run_ranks(busy, 2)
    assert "rank 0 (host" in waiting.text and "has not made this call and none before" in waiting.text
    assert "stopped" not in waiting.text
    assert late.text == waiting.text and late.seconds < 1.0


def destroy_with_sends_to_a_stopped_rank(rank: int, world: int) -> float:
    import torch

    store = start(timeout=60)
    all_reduce()
    if rank == 1:
        wake_later(os.getpid(), STOP)
        signal_self(store, signal.SIGSTOP, 0.0)
        time.sleep(1.0)
        return 0.0
    store.wait(["signalled"])
    time.sleep(0.3)
    dist.isend(torch.ones(1 << 20), 1)
    return destroy_seconds()


def test_destroy_does_not_wait_for_a_stopped_rank() -> None:
    assert run_ranks(destroy_with_sends_to_a_stopped_rank, 2)[0] < allowed(LEFT) + 0.5
