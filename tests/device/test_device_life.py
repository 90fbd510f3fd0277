"""The ends of groups: what is under way on a device may end, ranks need not come at the same time, nothing is left."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import device_ranks
from ranks import run_ranks

pytestmark = pytest.mark.ci

Env = dict[str, "str | None"]
N = 4099
PATIENCE = 60
"""Seconds in which what must come comes, on a loaded machine too."""
LONGER = 4.0
"""Seconds: more than any patience at the end of a group."""


def begun(rank: int) -> torch.device:
    device = device_ranks.init(rank)
    dist.all_reduce(torch.zeros(N, device=device))
    torch.accelerator.synchronize()
    return device


def behind(seconds: float, content: torch.Tensor) -> torch.Tensor:
    """A tensor whose content the current stream gets so much later."""
    made = torch.full_like(content, -7.0)
    device_ranks.native.delay(seconds)
    made.copy_(content)
    return made


def seen(tensor: torch.Tensor) -> str:
    got = tensor.cpu().tolist()
    return str(got[0]) if got == [got[0]] * len(got) else f"{got[:4]}..."


def nothing_but(result: list[str], env: Env, body: Any, *args: Any) -> None:
    for lines in run_ranks(body, 2, *args, env=env, timeout=2 * PATIENCE):
        assert lines == result, lines


def destroyed_under_way(rank: int, world: int) -> list[str]:
    """A last step, and destroy at once: the host never waited for it."""
    device = begun(rank)
    ones = torch.ones(N, device=device)
    tensor = behind(LONGER, ones)
    work = dist.all_reduce(tensor, async_op=True)
    dist.destroy_process_group()
    return [seen(tensor), str(work.is_success()), *device_ranks.native.misuse().splitlines()]


def test_destroy_waits_for_what_is_under_way(device_env: Env) -> None:
    nothing_but(["2.0", "True"], device_env, destroyed_under_way)


def left_by_the_root(rank: int, world: int) -> list[str]:
    """Rank 1 has broadcast and is gone when rank 0's part of it begins; then rank 0 calls what rank 1 will not."""
    device = begun(rank)
    ones = torch.ones(N, device=device)
    tensor = ones if rank == 1 else behind(2 * LONGER, torch.zeros(N, device=device))
    work = dist.broadcast(tensor, 1, async_op=True)
    if rank == 1:
        dist.destroy_process_group()  # gives up to meet the other
        return ["1.0", "True", "left"]
    work.wait()
    told = [seen(tensor), str(work.is_success())]
    more = dist.all_reduce(tensor, async_op=True)
    until = time.monotonic() + PATIENCE
    while more.exception() is None and time.monotonic() < until:
        time.sleep(0.01)
    torch.accelerator.synchronize()
    text = str(more.exception())
    told.append("left" if "rank 1 (host" in text and "has left (it destroyed the group" in text else text)
    return told + device_ranks.native.misuse().splitlines()


def test_what_a_rank_gave_before_it_left_counts(device_env: Env) -> None:
    nothing_but(["1.0", "True", "left"], device_env, left_by_the_root)


def dropped(rank: int, world: int) -> list[str]:
    """Nobody keeps the handle of the group: its call, which waits for its input, ends all the same."""
    import ringcomm

    device = device_ranks.start(rank)
    limit = timedelta(seconds=PATIENCE)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, False, limit)
    backend: Any = ringcomm.create_backend(store, rank, world, limit)
    backend.allreduce([torch.zeros(N, device=device)]).wait()
    torch.accelerator.synchronize()
    ones = torch.ones(N, device=device)
    tensor = behind(1.0, ones)
    backend.allreduce([tensor]).wait()
    del backend
    return [seen(tensor), *device_ranks.native.misuse().splitlines()]


def test_a_group_that_is_dropped_ends_its_calls(device_env: Env) -> None:
    nothing_but(["2.0"], device_env, dropped)


def not_destroyed(rank: int, world: int) -> list[str]:
    device = begun(rank)
    dist.all_reduce(torch.ones(N, device=device), async_op=True)
    return device_ranks.native.misuse().splitlines()  # type: ignore[no-any-return]


def test_processes_that_end_without_destroying(device_env: Env) -> None:
    nothing_but([], device_env, not_destroyed)


def destroyed_beside(rank: int, world: int) -> list[str]:
    """One thread goes on calling while the main one destroys: its calls end, or it is told why they do not."""
    device = begun(rank)
    told: list[str] = []

    def call() -> None:
        try:
            while True:
                dist.all_reduce(torch.ones(N, device=device))
        except (RuntimeError, ValueError) as error:
            told.append(str(error))

    backend: Any = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]
    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.3)
    backend.shutdown()
    thread.join(PATIENCE)
    ended = len(told) == 1 and ("was destroyed" in told[0] or "has left" in told[0])
    return [str(ended or told), *device_ranks.native.misuse().splitlines()]


def test_destroy_beside_calls_of_another_thread(device_env: Env) -> None:
    nothing_but(["True"], device_env, destroyed_beside)


def destroyed_in_set_up(rank: int, world: int) -> list[str]:
    """Rank 1 never has a tensor on its device: rank 0's first call waits for it, until the main thread has enough."""
    device = device_ranks.init(rank)
    backend: Any = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]
    told: list[str] = []

    def call() -> None:
        try:
            dist.all_reduce(torch.ones(N, device=device))
        except RuntimeError as error:
            told.append(str(error))

    dist.barrier()
    if rank == 0:
        thread = threading.Thread(target=call)
        thread.start()
        time.sleep(1.0)
        backend.shutdown()
        thread.join(PATIENCE)
        return [str("was destroyed" in told[0]) if told else "still in it"]
    return ["True"]


def test_destroy_beside_a_set_up(device_env: Env) -> None:
    nothing_but(["True"], device_env, destroyed_in_set_up)


def again(rank: int, world: int) -> list[str]:
    """Groups made and destroyed one after the other leave nothing."""
    device = device_ranks.start(rank)
    kept = []
    for _ in range(4):
        dist.init_process_group(device_ranks.BOTH)
        tensor = torch.ones(N, device=device)
        dist.all_reduce(tensor)
        assert tensor.cpu()[0].item() == world
        dist.barrier()  # both end it at the same time: else one gives up to meet the other
        dist.destroy_process_group()
        kept.append(str(device_ranks.native.live()))
    return kept


def test_nothing_is_left_of_groups(device_env: Env) -> None:
    for kept in run_ranks(again, 2, env=device_env, timeout=PATIENCE):
        assert len(set(kept)) == 1, kept
