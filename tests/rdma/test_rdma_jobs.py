"""Jobs over verbs on two nodes with rxe devices: values, bytes, faults. All run in one boot of the lab and on one
import of torch (guest_ranks.py), for both take long where all is emulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import rdma_jobs
from collective_checks import nothing_wrong
from collective_operations import OPERATIONS, ROOTED, Case
from guest_ranks import GuestRanks
from rdma_lab import RdmaLab
from test_net_collectives import cases

# Minutes on a quiet machine; the first test waits for boot and import besides, which a busy one makes very long.
pytestmark = [pytest.mark.long, pytest.mark.ci, pytest.mark.timeout(2400)]
VERBS: dict[str, str | None] = {"RINGCOMM_NET": "verbs"}
SOON: dict[str, str | None] = {**VERBS, "RINGCOMM_IB_TIMEOUT": "16"}
"""All tries take 2 s, with the shipped 18 they take 8 s. Not 14: a guest's processor may pause for longer than that."""
BOUND = 20.0
"""Seconds from a fault to the exception. Milliseconds to 1 s on real machines; all is emulated here, on two cores."""
MESSAGE, CALLS = 4 << 20, 4
FEW_SLOTS = (33_000, 3)
"""396 KB of float32, more than a slot."""
HEADERS = 58 / 4096
"""Ethernet, IP, UDP, base transport header and checksum of each packet of at most 4096 bytes."""


@pytest.fixture(scope="module")
def ranks(rdma_lab: RdmaLab) -> Iterator[GuestRanks]:
    yield GuestRanks(rdma_lab)


def few_cases(world: int) -> list[Case]:
    """Every collective small and of several slots, from a root on either node; a quarter of what `cases` has, and a
    tenth of its bytes, for four ranks share two emulated processors."""
    found = []
    for operation in OPERATIONS:
        for shape in ((7,), FEW_SLOTS):
            found += [Case(operation, shape=shape, root=root) for root in ([1, 2] if operation in ROOTED else [0])]
    return [*found, *(Case("all_reduce", dtype, shape=(129, 5)) for dtype in (torch.bfloat16, torch.float64))]


@pytest.mark.parametrize(("per_node", "choose"), [(1, lambda world: cases(world, "ringcomm")), (2, few_cases)])
def test_every_collective_over_verbs(ranks: GuestRanks, per_node: int, choose: Callable[[int], list[Case]]) -> None:
    chosen = choose(2 * per_node)
    assert {case.operation for case in chosen} == set(OPERATIONS)
    results = ranks.run(rdma_jobs.values, per_node, chosen, timeout=600, env=VERBS)
    assert [kind for kind, _ in results] == ["shm+verbs"] * 2 * per_node
    nothing_wrong([wrong for _, wrong in results])


def test_messages_between_all_pairs(ranks: GuestRanks) -> None:
    for off in ranks.run(rdma_jobs.messages, 2, env=VERBS):
        assert off == [0.0] * 9


def test_the_devices_carry_what_the_formula_says_and_tcp_no_payload(ranks: GuestRanks) -> None:
    """2 (n - 1) / n of the message leave each of n = 2 nodes, and headers."""
    for rdma, tcp in ranks.run(rdma_jobs.carried, 1, MESSAGE, CALLS, env=VERBS):
        wanted = MESSAGE * CALLS * (1 + HEADERS)
        assert wanted <= rdma <= 1.03 * wanted, f"{rdma / wanted:.4f} of what it should be"
        assert tcp < 0.01 * MESSAGE


def test_a_killed_rank_is_named(ranks: GuestRanks) -> None:
    found, _ = ranks.run(rdma_jobs.killed, 1, 1, env=VERBS, expect_dead=[1])
    seen, pid = found
    assert f"rank 1 (host host1, pid {pid})" in seen.text and seen.after < BOUND, seen


@pytest.mark.parametrize("node", [0, 1])
def test_a_link_that_goes_down_is_an_error_on_both_sides_that_names_rank_and_status(
    ranks: GuestRanks, node: int
) -> None:
    """Own and peer's: each rank is one or the other."""
    first, second = ranks.run(rdma_jobs.link_down, 1, node, env=SOON)
    for seen in (first, second):
        assert "over verbs" in seen.text and "_ERR (" in seen.text, seen.text
        assert "rank 0" in seen.text or "rank 1" in seen.text
        assert seen.after < BOUND
    # The devices are as good as before.
    for _, wrong in ranks.run(rdma_jobs.values, 1, cases(2, "ringcomm")[:4], env=VERBS):
        assert not wrong


def test_lost_packets_lose_no_data(ranks: GuestRanks) -> None:
    nothing_wrong(ranks.run(rdma_jobs.lossy, 1, "1%", timeout=300, env=SOON))
