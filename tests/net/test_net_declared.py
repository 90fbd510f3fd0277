"""Ranks of one machine that are declared to be on different nodes, with TCP between those: no namespaces needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from collective_checks import check, nothing_wrong
from collective_operations import run_cases
from faulty import NOTICED, allowed, failure, start
from lab_ranks import lab, run_on
from ranks import RankPool, run_ranks
from test_net_collectives import cases

Pools = Callable[..., RankPool]


def declared(each: int) -> dict[str, str | None]:
    return {"RINGCOMM_ACROSS": "tcp", "RINGCOMM_RANKS_PER_NODE": str(each)}


@pytest.mark.parametrize(("world", "each"), [(2, 1), (4, 2), pytest.param(3, 2, marks=pytest.mark.long)])
def test_every_collective_between_declared_nodes(rank_pool: Pools, world: int, each: int) -> None:
    check(rank_pool(world, backend="ringcomm", env=declared(each)), cases(world, "ringcomm"), timeout=300)


def kinds(rank: int, world: int) -> list[str]:
    """What carries the default group and each of the subgroups that this rank is in."""
    dist.init_process_group("ringcomm")
    subgroups = [dist.new_group(members) for members in ([0, 1], [2, 3], [1, 2])]
    every: list[Any] = [dist.distributed_c10d._get_default_group(), *subgroups]
    mine = [group for group in every if group is not dist.GroupMember.NON_GROUP_MEMBER]
    found = [group._get_backend(torch.device("cpu")).connection_kind for group in mine]
    dist.barrier()
    dist.destroy_process_group()
    return found


def test_shared_memory_stays_within_a_node_and_only_then() -> None:
    outside = ["shm+tcp"]
    assert run_ranks(kinds, 4, env=declared(2)) == [
        [*outside, "shm"],
        [*outside, "shm", "shm+tcp"],
        [*outside, "shm", "shm+tcp"],
        [*outside, "shm"],
    ]
    assert run_ranks(kinds, 4, env={"RINGCOMM_RANKS_PER_NODE": "2"})[1] == ["shm", "shm", "shm"]


def refusal(rank: int, world: int) -> str:
    try:
        dist.init_process_group("ringcomm")
    except RuntimeError as error:
        return str(error)
    return ""


def test_who_asks_for_verbs_where_there_are_none_hears_why_on_every_rank() -> None:
    """No machine has this device; where there is no libibverbs that is the reason."""
    texts = run_ranks(refusal, 2, env={**declared(1), "RINGCOMM_NET": "verbs", "RINGCOMM_IB_HCA": "=no_such_device"})
    assert texts[0] == texts[1]
    assert "net is verbs, but not all ranks can use RDMA: " in texts[0] and "docs/rdma.md" in texts[0]
    reasons = (
        "libibverbs.so.1 cannot be opened",
        "verbs give no list of devices",
        "verbs show no RDMA device",
        "no device fits",
    )
    assert any(reason in texts[0] for reason in reasons)


def alone(rank: int, world: int, chosen: Any) -> list[str]:
    dist.init_process_group("ringcomm")
    wrong = run_cases(rank, world, chosen)
    dist.destroy_process_group()
    return wrong


def test_declared_nodes_need_no_network_but_loopback() -> None:
    """A host with nothing but what it has itself: the cable is cut, and the first host's address is not used."""
    with lab(1) as made:
        made.cut(0)
        nothing_wrong(run_on(made, 2, alone, cases(2, "ringcomm")[:40], env=declared(1)))


def too_little_for_what_comes(rank: int, world: int, folder: str) -> Any:
    """Rank 2 has taken all of its memory for large messages when small ones come from rank 0."""
    config = Path(folder, f"{rank}.yaml")
    limit = ", limit: 1MiB" if rank == 2 else ""
    config.write_text(f"version: 1\nmemory: {{slot: 496KiB, slots: 2{limit}}}\n")
    os.environ["RINGCOMM_CONFIG"] = str(config)
    start(timeout=30)
    big = torch.ones(1 << 20)
    dist.gather(big, [torch.zeros(1 << 20) for _ in range(world)] if rank == 2 else None, dst=2)
    if rank == 2:
        return failure(lambda: dist.recv(big, 0))
    if rank == 0:
        return failure(lambda: (dist.send(big, 2), dist.recv(big, 2)))
    return failure(lambda: dist.recv(big, 2))


def test_a_receive_that_has_no_memory_fails_at_once_and_blames_nobody_else(tmp_path: Path) -> None:
    for found in run_ranks(too_little_for_what_comes, 3, str(tmp_path), env=declared(1)):
        assert "memory.limit" in found.text and "rank 2" in found.text, found
        assert found.seconds < allowed(NOTICED)
