"""Ctrl-C: a wait in Work.wait on the main thread raises at once, and the process ends as usual."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faulty import (
    LATE,
    NOTICED,
    all_reduce,
    allowed,
    destroy_seconds,
    failure,
    finish,
    script,
    signal_self,
    signalled,
    start,
)
from ranks import run_ranks

SOON = 1.0
"""Seconds from SIGINT to KeyboardInterrupt; a wait looks at signals when one comes, at the latest after 0.2 s."""


def interrupted(rank: int, world: int, what: str) -> Any:
    store = start(timeout=20)
    all_reduce()
    if rank == 1:
        store.wait(["interrupted"], timedelta(seconds=30))
        if what == "goes on":  # the call of rank 0 still stands: it can be completed
            tensor = torch.ones(4)
            dist.all_reduce(tensor)
            return tensor[0].item()
        return None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal_self(store, signal.SIGINT, 0.5)
    calls: dict[str, Any] = {
        "recv": lambda: dist.recv(torch.ones(4), 1),
        "barrier": dist.barrier,
        "wait": lambda: all_reduce(async_op=True).wait(),
    }
    found = failure(calls.get(what, all_reduce))
    late = found.at - signalled(store)
    store.set("interrupted", "1")
    if what == "goes on":
        time.sleep(1.0)
        return found, late, None
    return found, late, destroy_seconds()


@pytest.mark.parametrize("what", ["all_reduce", "barrier", "recv", "wait", "goes on"])
def test_ctrl_c_in_a_wait(what: str) -> None:
    results = run_ranks(interrupted, 2, what)
    found, late, destroy = results[0]
    assert found.kind == "KeyboardInterrupt" and late < SOON
    if what == "goes on":
        assert results[1] == 2.0
    else:
        assert destroy < 3.0  # up to 2 s for the call to end, and half of that for a busy machine


def own_handler(rank: int, world: int) -> Any:
    store = start(timeout=20)
    if rank == 1:
        time.sleep(1.5)
        all_reduce()
        return None
    seen: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    signal_self(store, signal.SIGUSR2, 0.3)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return seen, tensor[0].item()


def test_a_handler_that_does_not_raise_lets_the_wait_go_on() -> None:
    assert run_ranks(own_handler, 2)[0] == ([signal.SIGUSR2], 2.0)


def in_future(rank: int, world: int) -> float:
    store = start(timeout=3.0)
    if rank == 1:
        store.wait(["over"], timedelta(seconds=30))
        return 0.0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal_self(store, signal.SIGINT, 0.3)
    work = all_reduce(async_op=True)
    began = time.monotonic()
    try:
        try:
            work.get_future().wait()
        except RuntimeError:  # the time-out of the call
            time.sleep(0.5)
    except KeyboardInterrupt:
        store.set("over", "1")
        return time.monotonic() - began
    raise AssertionError("no KeyboardInterrupt")


def test_ctrl_c_in_a_wait_on_a_future_comes_when_that_ends() -> None:
    """torch's wait knows no signals: Python sees this one when the wait is over, at the latest at the time-out."""
    assert run_ranks(in_future, 2)[0] < 3.0 + allowed(LATE)


def test_ctrl_c_ends_the_process_and_the_others_hear_of_it(tmp_path: Path) -> None:
    text = """
        rank = int(sys.argv[1])
        init(rank, 2, sys.argv[2])
        dist.all_reduce(torch.ones(4))
        print("ready", flush=True)
        try:
            if rank == 1:
                time.sleep(2.0)
            dist.all_reduce(torch.ones(4))
            if rank == 1:  # the first one can still complete: rank 0 made it before it ended
                dist.all_reduce(torch.ones(4))
        except KeyboardInterrupt:
            raise
        except RuntimeError as error:
            print("ERROR", error, flush=True)
    """
    store = str(tmp_path / "store")
    ranks = [script(text, str(rank), store) for rank in range(2)]
    for process in ranks:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    sent = time.monotonic()
    os.kill(ranks[0].pid, signal.SIGINT)
    code, _, err = finish(ranks[0], timeout=20)
    # Python's own end on Ctrl-C: the signal again, with the default action. In between, the pending call gets its 2 s.
    assert code == -signal.SIGINT and "KeyboardInterrupt" in err and "Fatal" not in err
    assert time.monotonic() - sent < 2.0 + allowed(NOTICED)
    code, out, err = finish(ranks[1], timeout=20)
    assert code == 0 and "ERROR" in out and f"pid {ranks[0].pid}" in out, out + err
