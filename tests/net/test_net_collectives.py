"""Every collective with its values checked, on ranks of two hosts: over gloo, which shows that lab and tests work, and
over ringcomm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective_checks import nothing_wrong
from collective_operations import MOVING, OPERATIONS, REDUCING, ROOTED, Case, run_cases
from lab_ranks import lab, run_on
from net_lab import Lab

NOT_GLOO = {
    "all_gather_into_tensor_coalesced",
    "all_reduce_coalesced",
    "all_to_all",
    "reduce",  # writes on ranks that are not the root
    "reduce_scatter_tensor_coalesced",
}
LARGE = (1 << 17, 3)
"""1.5 MiB of float32: many slots, and several times what a socket holds."""


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with lab(2) as made:
        yield made


def cases(world: int, backend: str) -> list[Case]:
    found = []
    for operation in OPERATIONS:
        if backend == "gloo" and operation in NOT_GLOO:
            continue
        roots = range(world) if operation in ROOTED else [0]
        shapes: list[tuple[int, ...]] = [(1,), (7,), (1000, 3)]
        shapes += [LARGE] * ("coalesced" not in operation)
        found += [Case(operation, shape=shape, root=root) for shape in shapes for root in roots]
        if backend != "gloo":
            found += [Case(operation, dtype, shape=(129, 5)) for dtype in (torch.bfloat16, torch.int16, torch.float64)]
    return found


def all_cases(rank: int, world: int, backend: str, chosen: list[Case]) -> list[str]:
    dist.init_process_group(backend)
    wrong = run_cases(rank, world, chosen)
    dist.barrier()
    dist.destroy_process_group()
    return wrong


@pytest.mark.parametrize(
    ("backend", "per_host"),
    [("gloo", 1), pytest.param("gloo", 2, marks=pytest.mark.long), ("ringcomm", 1), ("ringcomm", 2)],
)
def test_every_collective_between_two_hosts(two: Lab, backend: str, per_host: int) -> None:
    chosen = cases(2 * per_host, backend)
    assert {case.operation for case in chosen} >= (set(MOVING) | set(REDUCING)) - NOT_GLOO
    nothing_wrong(run_on(two, per_host, all_cases, backend, chosen, timeout=300))


def messages(rank: int, world: int, backend: str) -> list[float]:
    """Each rank sends to each other at once: small ones, then large ones, taken in another order by tag."""
    dist.init_process_group(backend)
    got = []
    others = [peer for peer in range(world) if peer != rank]
    for size in (1, 100, 1 << 18):
        sent = [
            dist.isend(torch.full((size,), float(rank * 10 + tag)), peer, tag=tag) for peer in others for tag in (1, 2)
        ]
        for peer in reversed(others):
            for tag in (2, 1):
                buffer = torch.zeros(size)
                dist.recv(buffer, peer, tag=tag)
                got.append(float(buffer.mean()) - (peer * 10 + tag) + float(buffer.std(unbiased=False)))
        for work in sent:
            assert work is not None
            work.wait()
    dist.barrier()
    dist.destroy_process_group()
    return got


@pytest.mark.parametrize("backend", ["gloo", "ringcomm"])
def test_messages_between_all_pairs_of_two_hosts(two: Lab, backend: str) -> None:
    for got in run_on(two, 2, messages, backend):
        assert len(got) == 3 * 3 * 2 and set(got) == {0.0}


def subgroups(rank: int, world: int) -> list[float]:
    """Groups of two hosts, of one host, of one rank, from one another: made, used in turn and at once, ended."""
    dist.init_process_group("ringcomm")
    members = ([0, 2], [1, 3], [0, 1], [2, 3], [3, 1, 0], [rank])
    groups = [(m, dist.new_group(m, use_local_synchronization=len(m) == 1)) for m in members]
    mine = [(m, group) for m, group in groups if rank in m]
    results = []
    for _ in range(3):
        tensors = [torch.full((5000,), float(rank + 1)) for _ in mine]
        works = [dist.all_reduce(t, group=g, async_op=True) for t, (_, g) in zip(tensors, mine, strict=True)]
        for work in works:
            work.wait()
        results += [float(t.mean()) - sum(r + 1 for r in m) for t, (m, _) in zip(tensors, mine, strict=True)]
    for _, group in mine:
        dist.destroy_process_group(group)
    dist.barrier()
    dist.destroy_process_group()
    return results


def test_groups_across_and_within_hosts_side_by_side(two: Lab) -> None:
    for results in run_on(two, 2, subgroups):
        assert results and set(results) == {0.0}


def uneven(rank: int, world: int) -> Any:
    dist.init_process_group("ringcomm")
    value = torch.full((1 << 16,), float(rank + 1))
    dist.all_reduce(value)
    group: list[Any] = [None] * world
    dist.all_gather_object(group, {"rank": rank, "text": "x" * 1000 * rank})
    dist.destroy_process_group()
    return float(value.mean()), [len(one["text"]) for one in group]


def test_three_hosts_with_two_ranks_each() -> None:
    with lab(3) as made:
        for mean, lengths in run_on(made, 2, uneven):
            assert mean == 21.0 and lengths == [1000 * rank for rank in range(6)]
