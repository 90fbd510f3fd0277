"""Calls that are captured into a graph, and calls beside a capture."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

import device_ranks
from device_checks import Env, N, begun, everywhere, expect, finish

pytestmark = pytest.mark.ci


def replayed(rank: int, world: int) -> list[str]:
    device = begun(rank)
    wrong: list[str] = []
    given, tensor = torch.zeros(N, device=device), torch.zeros(N, device=device)
    side = torch.Stream(device)
    torch.accelerator.synchronize()
    with side:
        device_ranks.native.capture(True)
        tensor.copy_(given)
        dist.all_reduce(tensor)
        device_ranks.native.capture(False)
        for k in (1.0, 2.0, 3.0):
            given.copy_(torch.full((N,), k, device=device))
            device_ranks.native.replay()
            expect(wrong, f"replay {k}", tensor, 2 * k)
            between = torch.ones(N, device=device)
            dist.all_reduce(between)
            expect(wrong, "a call between", between, 2.0)
    return finish(wrong)


def test_captured_calls_are_replayed(device_env: Env) -> None:
    everywhere(replayed, device_env)


def captured_beside(rank: int, world: int) -> list[str]:
    """While rank 0 captures, a call of its own is under way, which the watch and the caller ask about."""
    device = begun(rank)
    wrong: list[str] = []
    eager, tensor = torch.ones(N, device=device), torch.ones(N, device=device)
    torch.accelerator.synchronize()
    if rank == 1:
        dist.barrier()  # until rank 0 is in the midst of its capture
    work = dist.all_reduce(eager, async_op=True)
    with torch.Stream(device):
        device_ranks.native.capture(True)
        dist.all_reduce(tensor)
        if rank == 0:
            time.sleep(0.1)
            if work.is_completed():
                wrong.append("the call is over without rank 1")
            dist.barrier()
        device_ranks.native.capture(False)
        work.wait()
        expect(wrong, "the call under way", eager, 2.0)
        device_ranks.native.replay()
        expect(wrong, "the replay", tensor, 2.0)
    return finish(wrong)


def test_capture_beside_a_call_under_way(device_env: Env) -> None:
    everywhere(captured_beside, device_env)


def captured_first(rank: int, world: int) -> list[str]:
    """A group cannot be set up in a capture."""
    device = device_ranks.init(rank)
    wrong: list[str] = []
    tensor = torch.ones(N, device=device)
    torch.accelerator.synchronize()
    with torch.Stream(device):
        device_ranks.native.capture(True)
        try:
            dist.all_reduce(tensor)
            wrong.append("it was set up")
        except RuntimeError as error:
            if "before the group ever had a tensor" not in str(error):
                wrong.append(str(error))
        device_ranks.native.capture(False)
    dist.all_reduce(tensor)
    expect(wrong, "the sum", tensor, 2.0)
    return finish(wrong)


def test_the_first_call_is_not_captured(device_env: Env) -> None:
    everywhere(captured_first, device_env)


def captured_lists(rank: int, world: int) -> list[str]:
    """Kernels read lists from memory that another call has used: whether it is over is asked in the capture."""
    device = device_ranks.init(rank, own_device=True)
    wrong: list[str] = []
    given = torch.full((N,), rank + 1.0, device=device)
    gathered = [torch.zeros(N, device=device) for _ in range(world)]
    dist.all_gather(gathered, given)
    torch.accelerator.synchronize()
    with torch.Stream(device):
        device_ranks.native.capture(True)
        dist.all_gather(gathered, given)
        device_ranks.native.capture(False)
        for k in (5.0, 7.0):
            given.copy_(torch.full((N,), k + rank, device=device))
            device_ranks.native.replay()
            for r in range(world):
                expect(wrong, f"from rank {r}", gathered[r], k + r)
    return finish(wrong)


def test_captured_lists(device_env: Env) -> None:
    everywhere(captured_lists, device_env)
