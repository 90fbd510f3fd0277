"""Deaths at any moment, in any mix of calls: whatever the survivors were in, all name the same dead rank in time."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from faulty import LEFT, NOTICED, allowed, destroy_seconds, failure, kill_self, named, signalled, start
from ranks import run_ranks


def ring(count: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    out, into = torch.ones(count), torch.zeros(count)
    ops = [
        dist.P2POp(dist.isend, out, (rank + 1) % world),
        dist.P2POp(dist.irecv, into, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def several(count: int) -> None:
    works = [dist.all_reduce(torch.ones(count // k), async_op=True) for k in (1, 2, 4)]
    for work in reversed(works):
        work.get_future().wait()


def uneven(count: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    to = [count * ((rank + r) % 3) for r in range(world)]
    dist.all_to_all_single(torch.zeros(sum(to)), torch.ones(sum(to)), to, to)


OPERATIONS: list[Callable[[int], Any]] = [
    lambda count: dist.all_reduce(torch.ones(count)),
    lambda count: dist.broadcast(torch.ones(count), count % dist.get_world_size()),
    lambda count: dist.reduce(torch.ones(count), count % dist.get_world_size()),
    lambda count: dist.all_gather_into_tensor(torch.zeros(count * dist.get_world_size()), torch.ones(count)),
    lambda count: dist.reduce_scatter_tensor(torch.zeros(count), torch.ones(count * dist.get_world_size())),
    lambda count: dist.barrier(),
    ring,
    several,
    uneven,
]


def work_until_failure(rank: int, world: int, seed: int, how: str) -> Any:
    store = start()
    dice, own = random.Random(seed), random.Random(seed * 100 + rank)
    victim = dice.randrange(world)
    moment = 0.2 + 0.3 * dice.random()
    dist.barrier()
    if rank == victim and how == "killed":
        kill_self(store, moment)

    def calls() -> None:
        began = time.monotonic()
        while True:
            OPERATIONS[dice.randrange(len(OPERATIONS))](4 ** dice.randrange(1, 10))
            if own.random() < 0.05:
                time.sleep(0.02 * own.random())
            if rank == victim and how == "exits" and time.monotonic() > began + moment:
                store.set("pid", str(os.getpid()))
                store.set("signalled", repr(time.monotonic()))
                os._exit(0)

    found = failure(calls)
    return found, found.at - signalled(store), named(store, victim), destroy_seconds()


def check(seed: int, how: str) -> None:
    world = 2 + seed % 3
    victim = random.Random(seed).randrange(world)
    results = run_ranks(work_until_failure, world, seed, how, expect_dead=[victim])
    survivors = [r for i, r in enumerate(results) if i != victim]
    for found, late, name, destroy in survivors:
        assert name + " died" in found.text and found.text == survivors[0][0].text
        assert late < allowed(NOTICED) and destroy < allowed(LEFT)
    if how == "killed":
        assert results[victim].exitcode == -signal.SIGKILL


@pytest.mark.parametrize("how", ["killed", "exits"])
@pytest.mark.parametrize("seed", range(3))
def test_a_death_at_a_random_moment(seed: int, how: str) -> None:
    check(seed, how)


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "exits"])
def test_deaths_at_many_random_moments(how: str) -> None:
    for seed in range(3, 40):
        check(seed, how)
