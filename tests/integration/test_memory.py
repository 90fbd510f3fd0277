"""Shared memory of a rank stays within the design's figures: own segments and the peers' pages it has touched.

Counted as the resident size of this process's mappings of our memfds (smaps), after the calls named in each test.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import ringcomm  # noqa: F401  (in a checkout that is not installed nobody else makes the name known)
from process_usage import our_segments
from ranks import run_ranks

MIB = 1 << 20


def resident() -> int:
    """Bytes of our segments in this process's page tables."""
    return our_segments()[1]


def every_operation(group: dist.ProcessGroup | None, count: int) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    whole, parts = torch.ones(count * world), torch.ones(count)
    dist.all_reduce(whole, group=group)
    dist.broadcast(whole, 0, group=group)
    dist.reduce(whole, world - 1, group=group)
    dist.all_gather_into_tensor(whole, parts, group=group)
    dist.reduce_scatter_tensor(parts, whole, group=group)
    dist.all_to_all_single(whole.clone(), whole, group=group)
    dist.gather(parts, list(whole.chunk(world)) if rank == 0 else None, 0, group=group)
    dist.scatter(parts, list(whole.chunk(world)) if rank == 0 else None, 0, group=group)
    dist.barrier(group=group)
    for peer in range(world):
        if peer != rank:
            order = (dist.isend, dist.irecv) if rank < peer else (dist.irecv, dist.isend)
            works = [call(whole.clone(), peer, group=group) for call in order]
            for work in works:
                assert work is not None
                work.wait()


def idle_groups(rank: int, world: int, groups: int) -> int:
    dist.init_process_group("ringcomm")
    before = resident()
    kept = [dist.new_group() for _ in range(groups)]
    grown = resident() - before
    assert len(kept) == groups
    dist.destroy_process_group()
    return grown


def small_groups(rank: int, world: int, groups: int) -> int:
    dist.init_process_group("ringcomm")
    before = resident()
    kept = [dist.new_group() for _ in range(groups)]
    for group in kept:
        every_operation(group, 1)
    grown = resident() - before
    dist.destroy_process_group()
    return grown


def busy_group(rank: int, world: int, count: int) -> int:
    dist.init_process_group("ringcomm")
    every_operation(None, count)
    used = resident()
    dist.barrier()
    dist.destroy_process_group()
    return used


def test_a_hundred_idle_groups_stay_under_4_mib() -> None:
    assert 0 < max(run_ranks(idle_groups, 2, 100, timeout=120)) < 4 * MIB


def test_a_hundred_groups_used_at_8_bytes_stay_under_16_mib() -> None:
    assert 0 < max(run_ranks(small_groups, 2, 100, timeout=120)) < 16 * MIB


def test_one_busy_group_of_2_stays_under_8_mib() -> None:
    # Over 2 MiB in flight each way, so the slots are there.
    assert 2 * MIB < max(run_ranks(busy_group, 2, 1 << 20, timeout=120)) < 8 * MIB


@pytest.mark.long
def test_one_busy_group_of_16_stays_under_40_mib() -> None:
    assert 4 * MIB < max(run_ranks(busy_group, 16, 1 << 18, timeout=300)) < 40 * MIB
