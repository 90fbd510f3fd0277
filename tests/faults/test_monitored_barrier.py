"""The monitored barrier: all missing ranks are named to every rank that came, and the group is none the worse."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ringcomm
from faulty import LATE, NOTICED, Failure, all_reduce, allowed, failure, meet, named, signal_self, start
from ranks import run_ranks


def barrier(seconds: float | None = None, group: Any = None, wait_all_ranks: bool = False) -> None:
    timeout = None if seconds is None else timedelta(seconds=seconds)
    ringcomm.monitored_barrier(group, timeout, wait_all_ranks)


def everyone(rank: int, world: int) -> float:
    store = start()
    pairs = [dist.new_group([a, a + 1]) for a in range(0, world, 2)]
    total = 0.0
    for turn in range(20):
        if turn % world == rank:
            time.sleep(0.005)
        barrier(wait_all_ranks=turn % 2 == 0)
        barrier(20, pairs[rank // 2])
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        total += tensor[0].item()
    meet(store, "end")
    return total


@pytest.mark.parametrize("world", [2, 4])
def test_it_passes_when_all_come(world: int) -> None:
    assert run_ranks(everyone, world) == [20.0 * world] * world


def two_are_missing(rank: int, world: int, wait_all_ranks: bool) -> list[Failure]:
    """Ranks 1 and 3 do not come. Then the group must work, and after one late call each all are in step again."""
    store = start()
    all_reduce()
    seen = []
    if rank % 2 == 0:
        seen.append(failure(lambda: barrier(0.5, wait_all_ranks=wait_all_ranks)))
    meet(store, "given up")
    all_reduce(1000)
    if rank % 2 == 1:
        seen.append(failure(lambda: barrier(20)))
    meet(store, "all told")
    for _ in range(3):
        barrier(20)
    all_reduce(1000)
    dist.destroy_process_group()
    return seen


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_all_missing_ranks_are_named_on_every_rank_that_came(wait_all_ranks: bool) -> None:
    results = run_ranks(two_are_missing, 4, wait_all_ranks)
    for rank, (seen,) in enumerate(results):
        assert seen.kind == "DistBackendError" and "monitoredBarrier #1" in seen.text, seen
        if rank % 2 == 1:
            assert "came too late" in seen.text and seen.seconds < allowed(LATE), seen
            continue
        assert seen.seconds < 0.5 + allowed(LATE), seen
        phrase = (
            "Ranks 1, 3 failed to pass"
            if wait_all_ranks
            else "Rank 1 failed to pass monitoredBarrier, and so did rank 3"
        )
        assert phrase in seen.text, seen.text
        assert re.search(r"rank 1 \(host .*, pid \d+\) has not come, its last call was all_reduce #1", seen.text), (
            seen.text
        )
        assert re.search(r"rank 3 \(host .*, pid \d+\) has not come", seen.text), seen.text


def dies_in_two(rank: int, world: int) -> tuple[Failure, str]:
    store = start()
    if rank == 1:
        signal_self(store, signal.SIGKILL, 0.1)
        time.sleep(30)
    seen = failure(lambda: barrier(30))
    return seen, named(store, 1)


def test_a_rank_that_dies_is_named_at_once() -> None:
    results = run_ranks(dies_in_two, 3, expect_dead=[1], timeout=60)
    for seen, culprit in (results[0], results[2]):
        assert seen.seconds < allowed(NOTICED), seen
        assert f"{culprit} died" in seen.text and "Rank 1 failed to pass monitoredBarrier" in seen.text, seen.text


def dead_and_missing(rank: int, world: int) -> tuple[float, str] | None:
    """With wait_all_ranks the time runs on for those that live."""
    store = start()
    if rank == 1:
        store.set("pid", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        store.wait(["done"])
        return None
    seen = failure(lambda: barrier(1.0, wait_all_ranks=True))
    store.set("done", "")
    return seen.seconds, seen.text


def test_wait_all_ranks_waits_for_those_that_live() -> None:
    seconds, text = run_ranks(dead_and_missing, 3, expect_dead=[1])[0]
    assert "Ranks 1, 2 failed to pass monitoredBarrier" in text, text
    assert 1.0 <= seconds < 1.0 + allowed(LATE)
    assert " died" in text and " has not come" in text, text


def one_look(rank: int, world: int) -> Failure | None:
    start()
    return failure(lambda: barrier(0)) if rank == 0 else None


def test_a_timeout_of_zero_looks_once() -> None:
    seen = run_ranks(one_look, 3)[0]
    assert "Rank 0 timed out in monitoredBarrier" in seen.text and seen.seconds < allowed(LATE), seen


def calls_under_way(rank: int, world: int) -> list[float]:
    """The time-out of a barrier is nobody else's: what is pending goes on."""
    store = start()
    got, tensor = torch.zeros(3), torch.ones(1 << 18)
    message: Any = dist.irecv(got, 1) if rank == 0 else None
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        failure(lambda: barrier(0.3))
    meet(store, "given up")
    if rank == 1:
        work = dist.all_reduce(tensor, async_op=True)
        dist.send(torch.full((3,), 7.0), 0)
        failure(lambda: barrier(20))
    meet(store, "told")
    work.wait()
    if rank == 0:
        message.wait()
    barrier(20)
    return [tensor[-1].item(), got[0].item()]


def test_calls_under_way_are_left_alone() -> None:
    assert run_ranks(calls_under_way, 2) == [[2.0, 7.0], [2.0, 0.0]]


def ended_from_outside(rank: int, world: int, how: str) -> Failure | None:
    store = start()
    if rank == 1:
        store.wait(["done"])
        return None
    if how == "Ctrl-C":
        signal_self(store, signal.SIGINT, 0.3)
    else:
        threading.Timer(0.3, lambda: dist.group.WORLD._get_backend(torch.device("cpu")).abort()).start()  # type: ignore[union-attr]
    seen = failure(lambda: barrier(30))
    store.set("done", "")
    return seen


@pytest.mark.parametrize(("how", "kind"), [("Ctrl-C", "KeyboardInterrupt"), ("abort", "DistBackendError")])
def test_it_can_be_ended_from_outside(how: str, kind: str) -> None:
    seen = run_ranks(ended_from_outside, 2, how)[0]
    assert seen.kind == kind and seen.seconds < allowed(NOTICED), seen
    assert how != "abort" or "abort" in seen.text, seen


def by_torch(rank: int, world: int) -> list[str]:
    """torch's own names: the ProcessGroup's method works; dist.monitored_barrier asks for the name gloo up to 2.13."""
    store = start()
    group: Any = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=20), wait_all_ranks=True)
    group.monitored_barrier()
    texts = []
    if rank == 0:
        texts.append(failure(lambda: group.monitored_barrier(timedelta(seconds=0.2))).text)
    meet(store, "end")
    if not torch.__version__.startswith("2.13."):
        return texts
    texts.append(failure(dist.monitored_barrier).text)
    return texts


@pytest.mark.parametrize("env", [{}, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}])
def test_torch_reaches_it(env: dict[str, str | None]) -> None:
    texts = run_ranks(by_torch, 2, env=env, timeout=120)[0]
    assert "Rank 1 failed to pass monitoredBarrier" in texts[0]
    assert "only implemented for GLOO" in texts[1]


def other_groups(rank: int, world: int) -> list[str]:
    start()
    gloo, single = dist.new_group(backend="gloo"), dist.new_group([0])
    texts = [failure(lambda: ringcomm.monitored_barrier(gloo)).text]
    if rank == 0:
        ringcomm.monitored_barrier(single, timedelta(0))
    else:
        texts.append(failure(lambda: ringcomm.monitored_barrier(single)).text)
    texts.append(failure(lambda: barrier(-1)).text)
    return texts


def test_groups_of_others_are_refused() -> None:
    first, second = run_ranks(other_groups, 2)
    assert "gloo" in first[0] and "new_group" in first[0] and "negative" in first[1]
    assert "not in the group" in second[1]


def at_random(rank: int, world: int, times: int) -> dict[int, bool]:
    """Comes a little too late now and then; by number, whether it passed."""
    store = start()
    outcome, number = {}, 0
    for turn in range(times):
        meet(store, f"turn {turn}")
        time.sleep((rank * 7919 + turn * 104729) % 11 * 0.001)
        number += 1
        try:
            barrier(0.006)
            outcome[number] = True
        except dist.DistBackendError as error:
            found = re.search(r"monitoredBarrier #(\d+)", str(error))
            assert found is not None, error
            number = int(found.group(1))
            outcome[number] = False
    return outcome


def test_ranks_agree_whether_a_barrier_was_passed() -> None:
    results = run_ranks(at_random, 3, 60)
    assert results[0] == results[1] == results[2]
    assert set(results[0]) == set(range(1, 61))
    assert not all(results[0].values())
