"""Schedules over levels, chosen by a configuration, give right values in a running group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ranks import run_ranks

LEVELS = str(Path(__file__).parents[1] / "program/examples/levels.py")
CONFIG: dict[str, Any] = {
    "schedules": [LEVELS],
    "memory": {"slot": "4KiB"},
    "policy": {"all_reduce": [{"schedule": "halves"}], "all_gather": [{"schedule": "halves"}]},
}


def values_over_levels(rank: int, world: int) -> None:
    dist.init_process_group("ringcomm", pg_options=CONFIG)
    for size in (0, 1, 7, 1024, 30011):
        mine = torch.arange(size, dtype=torch.int64) * (rank + 1)
        total = mine.clone()
        dist.all_reduce(total)
        assert torch.equal(total, torch.arange(size) * (world * (world + 1) // 2)), size
        shards = torch.empty(world * size, dtype=torch.int64)
        dist.all_gather_into_tensor(shards, mine)
        assert torch.equal(shards, torch.cat([torch.arange(size) * (r + 1) for r in range(world)])), size
    dist.destroy_process_group()


def test_values_over_levels() -> None:
    for world in (2, 5):
        run_ranks(values_over_levels, world, timeout=60)
