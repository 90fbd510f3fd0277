"""Random calls that all ranks of a group draw alike: any operation after any other, schedules mixed, some pending."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from collective_inputs import COMPLEX, MOVED_ONLY, RARE, REDUCIBLE, ops_of, same_bits, values
from collective_operations import MOVING, OPERATIONS, REDUCING, Case, run_cases
from test_every_schedule import PAIRS

isend: Any = dist.isend
irecv: Any = dist.irecv


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
    dtype = dice.choice((*REDUCIBLE, *COMPLEX) if operation in REDUCING else (*REDUCIBLE, *MOVED_ONLY, *RARE))
    return Case(
        operation,
        dtype,
        "sum" if operation in MOVING else dice.choice(ops_of(dtype)),
        (random_size(dice),),
        dice.choice(["contiguous", "contiguous", "offset", "every third"]),
        dice.randrange(world),
        dice.randrange(1000),
    )


def random_size(dice: random.Random) -> int:
    return dice.choice([0, 1, 3, 14, 15, 100, 1000, 4099, dice.randrange(1, 40_000)])


class Pending:
    """Asynchronous calls that stay in flight while others run, and are waited for in this rank's own random order."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.calls: list[tuple[str, Any, Tensor, Tensor]] = []

    def issue(self, shared: random.Random, group: Any) -> str:
        """One all_reduce, or a message to the right and one from the left; returns which."""
        me, ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
        size, seed, n = random_size(shared), shared.randrange(1000), len(ranks)
        if shared.random() < 0.5:
            tensor = torch.full((size,), float(seed + me))
            wanted = torch.full((size,), float(seed * n + n * (n - 1) // 2))
            self.calls.append(("all_reduce", dist.all_reduce(tensor, group=group, async_op=True), tensor, wanted))
            return "async all_reduce"
        tag, shift = shared.randrange(3), shared.randrange(1, n) if n > 1 else 0
        dtype = shared.choice((*REDUCIBLE, *MOVED_ONLY, *RARE))
        sent, got = values(me, seed, (size,), dtype), torch.empty(size, dtype=dtype)
        source = (me - shift) % n
        work = isend(sent, ranks[(me + shift) % n], group, tag)
        self.calls.append(("isend", work, sent, values(me, seed, (size,), dtype)))
        work = irecv(got, ranks[source], group, tag)
        self.calls.append(("irecv", work, got, values(source, seed, (size,), dtype)))
        return "message"

    def wait(self, keep: int) -> list[str]:
        """Until `keep` calls are left; what was wrong."""
        self.dice.shuffle(self.calls)
        wrong = []
        while len(self.calls) > keep:
            what, work, tensor, wanted = self.calls.pop()
            work.wait()
            if not same_bits(tensor, wanted):
                wrong.append(f"rank {dist.get_rank()}: a pending {what} of {tensor.dtype} x {tensor.numel()} is wrong")
        return wrong


def from_anyone(shared: random.Random, group: Any) -> list[str]:
    """All others send to one rank, which receives from whoever comes first."""
    me, ranks = dist.get_rank(group), dist.get_process_group_ranks(group)
    root, size, tag = shared.randrange(len(ranks)), shared.choice([1, 500, 30_000]), 10 + shared.randrange(1000)
    if me != root:
        dist.send(torch.full((size,), float(me)), ranks[root], group, tag)
        return []
    seen = {}
    for _ in range(len(ranks) - 1):
        tensor = torch.empty(size)
        source = dist.recv(tensor, None, group, tag)
        seen[ranks.index(source)] = (tensor == ranks.index(source)).all().item()
    if seen == {rank: True for rank in range(len(ranks)) if rank != root}:
        return []
    return [f"rank {dist.get_rank()}: {size} elements from any source of {ranks}: {seen}"]


def random_sequence(groups: Sequence[Any], seed: str, count: int, done: Counter[str]) -> list[str]:
    """`count` random calls on random groups; every rank must give the same list of groups, with NON_GROUP_MEMBER where
    it is in none. Returns what was wrong; counts the calls in `done`."""
    shared, own = random.Random(seed), random.Random(f"{seed} {dist.get_rank()}")
    pending = Pending(own)
    wrong: list[str] = []
    for _ in range(count):
        group, step = shared.choice(groups), random.Random(shared.getrandbits(64))
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            continue
        for _ in range(step.randrange(3)):
            done[pending.issue(step, group)] += 1
        if step.random() < 0.1:
            wrong += from_anyone(step, group)
            done["from any source"] += 1
        case = random_case(step, dist.get_world_size(group))
        wrong += run_cases(dist.get_rank(), dist.get_world_size(), [case], group)
        done[case.operation] += 1
        if own.random() < 0.1:
            time.sleep(own.random() * 0.002)
        wrong += pending.wait(keep=own.randrange(6) * 2)
    return wrong + pending.wait(keep=0)
