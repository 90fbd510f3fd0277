"""Hosts with two interfaces: channels and ranks share the cables, and when one is out the other carries all."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lab_ranks import lab, run_on
from net_lab import Lab

MESSAGE, CALLS = 4 << 20, 8


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with lab(2, cables=2) as made:
        yield made


def sent(cable: int) -> int:
    return int(Path(f"/sys/class/net/eth{cable}/statistics/tx_bytes").read_text())


def shares(rank: int, world: int, channels: int) -> list[int]:
    """Bytes that left this host by each cable during all_reduces, whose sums are checked."""
    rule = {"schedule": "hierarchical", "inside": "two_shot", "across": "two_shot", "channels": channels}
    dist.init_process_group("ringcomm", pg_options={"policy": {"all_reduce": [rule]}})
    value = torch.arange(MESSAGE // 4).remainder(7).float()
    dist.all_reduce(torch.ones(MESSAGE // 4))
    dist.barrier()
    before = [sent(cable) for cable in range(2)]
    dist.barrier()
    for _ in range(CALLS):
        x = value * (rank + 1)
        dist.all_reduce(x)
        assert torch.equal(x, value * (world * (world + 1) // 2))
    dist.barrier()
    found = [sent(cable) - b for cable, b in enumerate(before)]
    dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize(("per_host", "channels"), [(1, 2), (2, 1), (2, 2)])
def test_both_cables_carry_half(two: Lab, per_host: int, channels: int) -> None:
    for found in run_on(two, per_host, shares, channels):
        assert sum(found) >= CALLS * MESSAGE
        for cable in found:
            assert 0.45 < cable / sum(found) < 0.55, found


def test_one_channel_of_one_rank_uses_one_cable(two: Lab) -> None:
    for found in run_on(two, 1, shares, 1):
        assert max(found) > 0.98 * sum(found), found


def without_one(rank: int, world: int) -> float:
    if rank == 1:
        subprocess.run(["ip", "link", "set", "eth1", "down"], check=True)
    dist.init_process_group("ringcomm", pg_options={"policy": {"all_reduce": [{"schedule": "ring", "channels": 2}]}})
    value = torch.full((MESSAGE // 4,), float(rank + 1))
    dist.all_reduce(value)
    dist.barrier()
    dist.destroy_process_group()
    return float(value.mean())


def test_a_host_with_one_interface_down_uses_the_other() -> None:
    with lab(2, cables=2) as made:
        assert run_on(made, 1, without_one) == [3.0, 3.0]


def sends_and_is_gone(rank: int, world: int) -> Any:
    dist.init_process_group("ringcomm")
    if rank == 1:
        dist.send(torch.arange(1000.0), 0)
        os._exit(0)
    time.sleep(1.0)
    got = torch.empty(1000)
    dist.recv(got, 1)
    return got.tolist()


def test_what_was_sent_arrives_though_its_sender_ended_at_once(two: Lab) -> None:
    for _ in range(5):
        assert run_on(two, 1, sends_and_is_gone, expect_dead=[1])[0] == list(range(1000))
