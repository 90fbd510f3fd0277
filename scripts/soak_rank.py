"""One round of the soak on one rank: groups are made, used from several threads at once, and destroyed.

Everything random comes from the seed and the round's number, so a round can be repeated alone.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collective_random import irecv, isend, random_config, random_sequence
from process_usage import give_back_free_memory, usage

TIMEOUT = timedelta(seconds=120)
"""Of every call: what hangs ends in an error that names the culprit."""


@dataclass
class Report:
    """What one rank has to say of a round."""

    wrong: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    groups: int = 0
    usage: dict[str, int] = field(default_factory=dict)


def soak_round(rank: int, world: int, seed: int, number: int) -> Report:
    """A rank function of tests/ranks.py, for a pool that has the default group."""
    dice = random.Random(f"{seed} {number}")
    report = Report()
    sets = [make_groups(dice, world) for _ in range(dice.choice([1, 2, 3, 4]))]
    sets[0].append(None)  # the default group, which lives through all rounds
    use_from_threads(sets, [f"{seed} {number} {i}" for i in range(len(sets))], report)
    for group in (group for groups in sets for group in groups):
        if group is not None and group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
            report.groups += 1
    del sets, group
    give_back_free_memory()
    report.usage = usage()
    return report


def touch_everything(rank: int, world: int) -> None:
    """Uses all the memory that the default group may ever take, so that what grows afterwards is growth."""
    whole, part = torch.ones(world << 17), torch.ones(1 << 17)
    for root in range(world):
        parts = list(whole.chunk(world)) if rank == root else None
        dist.broadcast(whole, root)
        dist.reduce(whole, root)
        dist.gather(part, parts, root)
        dist.scatter(part, parts, root)
    dist.all_reduce(whole)
    dist.all_gather(list(whole.chunk(world)), part)
    dist.reduce_scatter(part, list(whole.chunk(world)))
    dist.all_to_all_single(whole.clone(), whole)
    peers = [peer for peer in range(world) if peer != rank]
    for work in [call(whole.clone(), peer) for peer in peers for call in (irecv, isend)]:
        work.wait()


def make_groups(dice: random.Random, world: int) -> list[Any]:
    """One to three groups of two to all ranks, each with its own random schedules."""
    groups = []
    for _ in range(dice.choice([1, 1, 2, 3])):
        ranks = sorted(dice.sample(range(world), dice.randint(2, world)))
        options = random_config(dice) if dice.random() < 0.8 else None
        groups.append(dist.new_group(ranks, timeout=TIMEOUT, backend="ringcomm", pg_options=options))
    return groups


def use_from_threads(sets: Sequence[list[Any]], seeds: Sequence[str], report: Report) -> None:
    """A thread for each set of groups. The order of calls within a set is the same on all ranks, not between sets."""
    failures: list[BaseException] = []
    lock = threading.Lock()

    def body(groups: list[Any], seed: str) -> None:
        done: Counter[str] = Counter()
        try:
            wrong = random_sequence(groups, seed, random.Random(seed).randint(5, 40), done)
        except BaseException as error:
            with lock:
                failures.append(error)
            return
        with lock:
            report.wrong += wrong
            report.done += done

    threads = [threading.Thread(target=body, args=pair) for pair in zip(sets, seeds, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
