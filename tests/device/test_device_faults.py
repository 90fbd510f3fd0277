"""What goes wrong with calls on a device: streams are let go, every rank learns of it and of whom."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import device_ranks
from ranks import Dead, run_ranks

pytestmark = pytest.mark.ci

Env = dict[str, "str | None"]
N = 4099
PATIENCE = 60
"""Seconds in which a failure must be there, on a loaded machine too."""


def begun(rank: int, own_device: bool) -> torch.device:
    device = device_ranks.init(rank, own_device)
    dist.all_reduce(torch.zeros(N, device=device))
    torch.accelerator.synchronize()
    return device


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def outcome(work: Any) -> str:
    """How a call that cannot end by itself has ended."""
    until = time.monotonic() + PATIENCE
    while work.exception() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert work.is_completed() and not work.is_success()
    return error_of(work.wait)


def with_missing(rank: int, world: int, own_device: bool, missing: str) -> list[str]:
    """Rank 1 does something else than to come to a call of rank 0. What rank 0, or every rank, is told."""
    device = begun(rank, own_device)
    backend: Any = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]
    if missing == "late":
        backend._set_default_timeout(timedelta(seconds=3))
    tensor = torch.ones(100 * N if missing == "differs much" else N, device=device)
    if rank == 1:
        if missing in ("dies", "aborts"):
            time.sleep(0.5)  # not before rank 0 has its call under way
        if missing == "dies":
            os._exit(7)
        if missing == "aborts":
            backend.abort()
        if missing.startswith("differs"):
            other = dist.all_reduce(torch.ones(N + 1, device=device), async_op=True)
            return [outcome(other), error_of(lambda: dist.all_reduce(tensor))]
        until = time.monotonic() + PATIENCE
        while "SUCCESS" in str(backend.get_error()) and time.monotonic() < until:
            time.sleep(0.01)
        return [error_of(lambda: dist.all_reduce(tensor)), error_of(lambda: dist.all_reduce(torch.ones(3)))]
    work = dist.all_reduce(tensor, async_op=True)
    error_of(work.wait)  # orders the stream, no more, unless the failure is known already
    torch.accelerator.synchronize()  # comes back: the stream was let go
    told = [outcome(work), error_of(lambda: dist.all_reduce(tensor)), error_of(lambda: dist.all_reduce(torch.ones(3)))]
    return told + device_ranks.native.misuse().splitlines()


CASES = {
    "dies": "rank 1 (host",
    "aborts": "was aborted by rank 1",
    "late": " Timed out ",
    "differs": "made another call there",  # and ends all the same
    "differs much": "made another call there",  # one waits for what the other does not send
}


@pytest.mark.parametrize("own_device", [False, True])
@pytest.mark.parametrize("missing", CASES)
def test_a_rank_that_does_not_come(missing: str, own_device: bool, device_env: Env) -> None:
    dead = [1] if missing == "dies" else []
    told = run_ranks(with_missing, 2, own_device, missing, env=device_env, timeout=2 * PATIENCE, expect_dead=dead)
    for lines in told:
        if isinstance(lines, Dead):
            continue
        assert len(lines) in (2, 3), lines
        # Where kernels wait, one of them may be the first to find another call's slot.
        texts = (CASES[missing], "a slot of another call") if own_device else (CASES[missing],)
        assert all(any(text in line for text in texts) for line in lines), lines
    if missing == "late":
        assert "rank 1 (host" in told[0][0] and "has made 1 calls" in told[0][0]


def without(rank: int, world: int, source: dict[str, str], only: int | None) -> list[str]:
    lacking: dict[str, Any] = {**source} if only in (None, rank) else {}
    device = device_ranks.start(rank, **lacking)
    dist.init_process_group(device_ranks.BOTH)
    tensor = torch.ones(4, device=device)
    told = [error_of(lambda: dist.all_reduce(tensor)), error_of(lambda: dist.broadcast(tensor, 0))]
    here = torch.ones(4)
    dist.all_reduce(here)
    assert here.tolist() == [float(world)] * 4
    dist.destroy_process_group()
    return told


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"driver": "/nowhere/libcuda.so.1"}, "no CUDA driver here"),
        ({"kernels": "", "missing": "no nvcc was found"}, "this build has no CUDA kernels: no nvcc was found"),
    ],
)
@pytest.mark.parametrize("only", [None, 1])
def test_what_is_not_there_is_named_on_every_rank(
    source: dict[str, str], text: str, only: int | None, device_env: Env
) -> None:
    told = run_ranks(without, 2, source, only, env=device_env, timeout=PATIENCE)
    for lines in told:
        for line in lines:
            assert text in line and f"rank {only or 0} (host" in line, told


def warned(rank: int, world: int) -> None:
    device = device_ranks.start(rank, warning="look at this")
    dist.init_process_group(device_ranks.BOTH)
    dist.all_reduce(torch.ones(4, device=device))
    dist.destroy_process_group()


def test_the_source_can_warn(device_env: Env, tmp_path: Path) -> None:
    log = {"RINGCOMM_DEBUG": "WARN", "RINGCOMM_DEBUG_FILE": str(tmp_path / "log-%r")}
    run_ranks(warned, 2, env={**device_env, **log}, timeout=PATIENCE)
    assert [file.name for file in tmp_path.iterdir() if "devices: look at this" in file.read_text()] == ["log-0"]


def unsaid(rank: int, world: int) -> list[str]:
    """Of three ranks one does not come and one gives up: the third's stream then goes on, with rubbish.

    Its work must never call that a success.
    """
    device = begun(rank, False)
    wrong: list[str] = []
    for turn in range(8):  # each is a race between two looks of the third
        group: Any = dist.new_group()
        dist.all_reduce(torch.zeros(N, device=device), group=group)
        torch.accelerator.synchronize()
        dist.barrier()
        backend = group._get_backend(device)
        until = time.monotonic() + PATIENCE
        if rank != 2:
            work = dist.all_reduce(torch.ones(N, device=device), group=group, async_op=True)
            if rank == turn % 2:  # whichever way round the ring goes
                time.sleep(0.02 + 0.003 * turn)
                backend.abort()
            while not work.is_completed() and time.monotonic() < until:
                pass  # at once
            if work.is_success() or work.exception() is None:
                wrong.append(f"rank {rank}, turn {turn}: the first that is said is success")
            if f"was aborted by rank {turn % 2}" not in error_of(work.wait):
                wrong.append(f"rank {rank}, turn {turn}: {error_of(work.wait)}")
        while "SUCCESS" in str(backend.get_error()) and time.monotonic() < until:
            time.sleep(0.001)
        dist.barrier()
    torch.accelerator.synchronize()
    return wrong + device_ranks.native.misuse().splitlines()


def test_what_was_ended_is_no_success(device_env: Env, tmp_path: Path) -> None:
    ring = tmp_path / "ring.yaml"  # the third hears from the one that gives up alone
    ring.write_text("version: 1\npolicy: {all_reduce: [{schedule: ring}]}\n")
    told = run_ranks(unsaid, 3, env={**device_env, "RINGCOMM_CONFIG": str(ring)}, timeout=4 * PATIENCE)
    assert told == [[], [], []], told


def one_of_three(rank: int, world: int, own_device: bool) -> list[str]:
    device = begun(rank, own_device)
    if rank == 2:
        time.sleep(0.5)  # not before the others have their calls under way
        os._exit(7)
    works = [dist.all_reduce(torch.ones(N, device=device), async_op=True) for _ in range(3)]
    until = time.monotonic() + PATIENCE
    succeeded = False
    while works[2].exception() is None and time.monotonic() < until:
        succeeded |= any(work.is_success() for work in works)
    torch.accelerator.synchronize()
    told = [error_of(work.wait) for work in works]
    told += ["a success before that"] * succeeded
    return told + device_ranks.native.misuse().splitlines()


@pytest.mark.parametrize("own_device", [False, True])
def test_one_of_three_dies(own_device: bool, device_env: Env) -> None:
    told = run_ranks(one_of_three, 3, own_device, env=device_env, timeout=2 * PATIENCE, expect_dead=[2])
    for lines in told[:2]:
        assert len(lines) == 3 and all("rank 2 (host" in line for line in lines), lines


def far_behind(rank: int, world: int) -> list[str]:
    """The call of a group that has failed stands behind the caller's own work for long.

    It is let go when the stream comes to it, and other groups have their turn meanwhile.
    """
    device = begun(rank, False)
    other: Any = dist.new_group()
    tensor = torch.ones(N, device=device)
    dist.all_reduce(tensor, group=other)
    torch.accelerator.synchronize()
    dist.barrier()
    backend: Any = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]
    given = torch.ones(N, device=device)
    if rank == 1:
        time.sleep(0.5)
        backend.abort()
    else:
        device_ranks.native.hold()
        work = dist.all_reduce(given, async_op=True)
        assert "was aborted by rank 1" in outcome(work)
        del work
    began = time.monotonic()
    with torch.Stream(device):  # not behind it
        again = dist.all_reduce(tensor, group=other, async_op=True)
        result = again.get_future_result()
        result.wait()  # by the watch
    told = [str(result.value() == 0 and time.monotonic() - began < 8)]
    if rank == 0:
        time.sleep(11 - (time.monotonic() - began))  # longer than a stream was ever waited for
        device_ranks.native.open()
    torch.accelerator.synchronize()
    return told + device_ranks.native.misuse().splitlines()


def test_a_failed_call_behind_long_work(device_env: Env) -> None:
    told = run_ranks(far_behind, 2, env=device_env, timeout=2 * PATIENCE)
    assert told == [["True"], ["True"]], told


def half_way(rank: int, world: int) -> list[str]:
    """The driver refuses a flag in the midst of a call: part of it is in the stream already."""
    device = begun(rank, False)
    tensor = torch.ones(N, device=device)
    torch.accelerator.synchronize()
    error_of(dist.barrier)  # rank 0 may fail while the other is still on the way out of it
    if rank == 0:
        device_ranks.native.fail("cuStreamWriteValue32_v2", 2)
        told = [error_of(lambda: dist.all_reduce(tensor, async_op=True))]
    else:
        told = [outcome(dist.all_reduce(tensor, async_op=True))]
    torch.accelerator.synchronize()
    told.append(error_of(lambda: dist.all_reduce(tensor)))
    return told + device_ranks.native.misuse().splitlines()


def test_a_call_that_fails_half_way(device_env: Env) -> None:
    for lines in run_ranks(half_way, 2, env=device_env, timeout=2 * PATIENCE):
        assert len(lines) == 2, lines
        assert all("group '0', rank 0 (host" in line and "cuStreamWriteValue32 failed" in line for line in lines), lines
