"""Random sequences: any operation after any other on the same connections, schedules mixed, calls pending."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch.distributed as dist

from collective_checks import Pools, nothing_wrong
from collective_random import random_config, random_sequence


def on_three_groups(rank: int, world: int, seed: int, count: int) -> list[str]:
    shared = random.Random(seed)
    groups = [None, *(dist.new_group(backend="ringcomm", pg_options=random_config(shared)) for _ in range(2))]
    wrong = random_sequence(groups, str(seed), count, Counter())
    for group in groups[1:]:
        dist.destroy_process_group(group)
    return wrong


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 3))])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_random_sequences(rank_pool: Pools, world: int, seed: int) -> None:
    nothing_wrong(rank_pool(world, backend="ringcomm").run(on_three_groups, seed, 150, timeout=120))


@pytest.mark.long
@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_long_random_sequences(rank_pool: Pools, world: int) -> None:
    for seed in range(100, 105):
        nothing_wrong(rank_pool(world, backend="ringcomm").run(on_three_groups, seed, 400, timeout=300))
