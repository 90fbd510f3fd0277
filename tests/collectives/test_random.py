"""Random sequences: any operation after any other on the same connections, schedules mixed, calls pending."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from collective_checks import Pools, nothing_wrong
from collective_inputs import MOVED_ONLY, REDUCIBLE, ops_of
from collective_operations import MOVING, OPERATIONS, REDUCING, Case, run_cases
from test_every_schedule import PAIRS


def random_config(dice: random.Random) -> dict[str, Any]:
    """Per collective two random schedules, one below a random size and one above."""
    choices: dict[str, list[str]] = {}
    for schedule, collective in PAIRS:
        choices.setdefault(collective, []).append(schedule)
    policy: dict[str, Any] = {}
    for collective, schedules in choices.items():
        rules: list[dict[str, Any]] = [{"schedule": dice.choice(schedules), "slot": dice.choice([256, 1024, 4096])}]
        if collective not in ("all_to_all", "gather", "scatter"):
            rules[0]["channels"] = dice.choice([1, 1, 2])
            rules.insert(0, {"max_bytes": dice.choice([256, 8192, 65536]), "schedule": dice.choice(schedules)})
        policy[collective] = rules
    return {"version": 1, "memory": {"slot": "8KiB", "slots": dice.choice([3, 4, 6])}, "policy": policy}


def random_case(dice: random.Random, world: int) -> Case:
    operation = dice.choice(sorted(OPERATIONS))
    dtype = dice.choice(REDUCIBLE if operation in REDUCING else (*REDUCIBLE, *MOVED_ONLY))
    size = dice.choice([0, 1, 3, 14, 15, 100, 1000, 4099, dice.randrange(1, 40_000)])
    return Case(
        operation,
        dtype,
        "sum" if operation in MOVING else dice.choice(ops_of(dtype)),
        (size,),
        dice.choice(["contiguous", "contiguous", "offset", "every third"]),
        dice.randrange(world),
        dice.randrange(1000),
    )


class Pending:
    """Asynchronous calls that stay in flight while others run, and are waited for at random."""

    def __init__(self, dice: random.Random, rank: int, world: int) -> None:
        self.dice, self.rank, self.world = dice, rank, world
        self.calls: list[tuple[Any, Tensor, float]] = []

    def issue(self, shared: random.Random, group: Any) -> None:
        size, value = shared.choice([1, 20, 5000]), shared.randrange(100)
        if shared.random() < 0.5:
            tensor = torch.full((size,), float(value + self.rank))
            work = dist.all_reduce(tensor, group=group, async_op=True)
            self.calls.append((work, tensor, value * self.world + self.world * (self.world - 1) / 2))
        else:
            tag, shift = shared.randrange(3), shared.randrange(1, self.world)
            tensor = torch.empty(size)
            source = (self.rank - shift) % self.world
            sent = torch.full((size,), float(value + self.rank))
            self.calls.append((dist.isend(sent, (self.rank + shift) % self.world, group, tag), sent, value + self.rank))
            self.calls.append((dist.irecv(tensor, source, group, tag), tensor, float(value + source)))

    def wait(self, keep: int) -> list[str]:
        self.dice.shuffle(self.calls)
        wrong = []
        while len(self.calls) > keep:
            work, tensor, wanted = self.calls.pop()
            work.wait()
            if not (tensor == wanted).all():
                wrong.append(f"rank {self.rank}: a pending call gave {tensor[:3]}, should be {wanted}")
        return wrong


def random_sequence(rank: int, world: int, seed: int, count: int) -> list[str]:
    shared, own = random.Random(seed), random.Random(seed * 1000 + rank)
    groups = [None, *(dist.new_group(backend="ringcomm", pg_options=random_config(shared)) for _ in range(2))]
    pending = Pending(own, rank, world)
    wrong: list[str] = []
    for _ in range(count):
        group = shared.choice(groups)
        if shared.random() < 0.4:
            pending.issue(shared, group)
        wrong += run_cases(rank, world, [random_case(shared, world)], group)
        if own.random() < 0.1:
            time.sleep(own.random() * 0.002)
        wrong += pending.wait(keep=own.randrange(6) * 2)
    wrong += pending.wait(keep=0)
    for group in groups[1:]:
        dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("world", [2, 3, 4])
def test_random_sequences(rank_pool: Pools, world: int, seed: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(random_sequence, seed, 150, timeout=120))


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_long_random_sequences(rank_pool: Pools, world: int) -> None:
    for seed in range(100, 105):
        nothing_wrong(rank_pool(world, backend="ringcomm").run(random_sequence, seed, 400, timeout=300))
