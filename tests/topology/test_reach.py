"""Which connection a pair would use and why; how far devices are apart; links whose ends differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import fake_machine as fake
from ringcomm import paths
from ringcomm.asymmetry import asymmetries
from ringcomm.discover.machine import machine
from ringcomm.facts import Gpu, Interface, Machine, NvLinks, Pci, Port, Rdma
from ringcomm.reach import Connection, connection, grouped
from ringcomm.topology import Rank, Topology, Way

A = Machine("a", "11111111-x", "net:[1]")
B = Machine("b", "22222222-x", "net:[1]")
POD = Machine("pod", "11111111-x", "net:[2]")


def on(machines: tuple[Machine, ...], *ranks: Rank, ways: tuple[Way, ...] = ()) -> Topology:
    return Topology(ranks, machines, ways)


def test_what_was_opened_is_proved_whatever_was_declared() -> None:
    topology = on((A,), Rank(0, machine=0, opened="0-1"), Rank(1, machine=0, opened="0-1"))
    expected = Connection("shm", "its memory was opened; on different nodes by declaration only", True)
    assert connection(topology, 0, 1) == expected
    assert connection(topology, 1, 1).kind == "self"


def test_declared_nodes_of_one_machine_have_tcp_where_that_is_asked_for() -> None:
    topology = on((A,), *(Rank(node, machine=0, opened="0-2") for node in (0, 0, 1)))
    assert connection(topology, 0, 2).kind == "shm"
    assert [connection(topology, 0, peer, "tcp").kind for peer in range(3)] == ["self", "shm", "tcp"]
    assert "connections.across is tcp" in connection(topology, 0, 2, "tcp").why


def test_the_same_host_is_only_a_candidate_until_somebody_opened() -> None:
    found = connection(on((A,), Rank(0, machine=0), Rank(0, machine=0)), 0, 1)
    assert (found.kind, found.proved) == ("shm", False) and "not proved" in found.why


@pytest.mark.parametrize("opened", [None, "0"])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (B, "different hosts (a, b)"),
        (POD, "one kernel, two network namespaces (net:[1], net:[2])"),
        (replace(B, hostname="a"), "different hosts (both named a; boot ids 11111111, 22222222)"),
    ],
)
def test_ranks_apart_have_tcp_and_the_difference_is_named(opened: str | None, other: Machine, words: str) -> None:
    topology = on((A, other), Rank(0, machine=0, opened=opened), Rank(1, machine=1))
    assert connection(topology, 0, 1) == Connection("tcp", f"{words}; the way was not looked for")


def test_machines_apart_have_verbs_where_all_have_an_active_port() -> None:
    ports = Rdma("mlx5_0", (Port(1, "DOWN", "Ethernet", 0.0, 0), Port(2, "ACTIVE", "Ethernet", 0.0, 0)))
    one, two = replace(A, rdma=(ports,)), replace(B, rdma=(ports,))
    ranks = Rank(0, machine=0, opened="0"), Rank(1, machine=1, opened="1")
    ways = (Way(0, 1, "10.0.0.2", "10.0.0.1", "eth2"), Way(1, 0, "10.0.0.1", "10.0.0.2", "eth2"))
    both, half, none = (on(machines, *ranks, ways=ways) for machines in ((one, two), (one, B), (A, B)))
    found = connection(both, 0, 1)
    assert (found.kind, found.proved) == ("verbs", False)
    assert found.why.endswith(
        "RDMA by mlx5_0 port 2 to mlx5_0 port 2, not proved; met over eth2 (10.0.0.2 to 10.0.0.1)"
    )
    assert connection(both, 0, 1, net="tcp").kind == "tcp" and "net is tcp" in connection(both, 0, 1, net="tcp").why
    assert connection(half, 0, 1).kind == "tcp" and "no RDMA: b has no active port" in connection(half, 0, 1).why
    assert connection(none, 0, 1).kind == "tcp" and "RDMA" not in connection(none, 0, 1).why
    assert "b has no active RDMA port" in connection(half, 0, 1, net="verbs").why
    declared = on((one,), *(Rank(node, machine=0, opened="0-1") for node in (0, 1)))
    assert [connection(declared, 0, 1, "tcp", net).kind for net in ("auto", "verbs")] == ["tcp", "verbs"]


def test_the_way_a_packet_would_take_is_added() -> None:
    ranks = Rank(0, machine=0, opened="0"), Rank(1, machine=1, opened="1")
    ways = (Way(0, 1, "10.0.0.2", "10.0.0.1", "eth2"), Way(1, 0, "10.0.0.1", why_not="Network is unreachable"))
    topology = on((A, B), *ranks, ways=ways)
    assert connection(topology, 1, 0).kind == "tcp"
    assert connection(topology, 1, 0).why.endswith("packets leave by eth2 (10.0.0.1 to 10.0.0.2)")
    assert connection(topology, 0, 1).kind is None
    assert connection(topology, 0, 1).why.endswith("the writer has no way to the reader: Network is unreachable")
    assert asymmetries(topology) == ["a has a way to b, but not the other way round"]


def test_one_namespace_in_which_opening_failed_is_said_and_flagged() -> None:
    topology = on((A,), Rank(0, machine=0, opened="0-1"), Rank(0, machine=0, opened="1"))
    assert connection(topology, 1, 0).kind is None and "could not be opened" in connection(topology, 1, 0).why
    assert asymmetries(topology) == ["rank 0 could open the memory of rank 1, but not the other way round"]


def test_of_a_declaration_alone_nothing_is_claimed() -> None:
    assert "nothing is known" in connection(Topology.of_nodes([[0], [1]]), 0, 1).why


def test_every_pair_is_in_exactly_one_group_of_answers() -> None:
    ranks = [Rank(r // 2, machine=r // 2, opened="0-1" if r < 2 else "2-3") for r in range(4)]
    topology = on((A, B), *ranks)
    found = [(a, b) for pairs in grouped(topology).values() for a, those in pairs.items() for b in those]
    assert sorted(found) == [(a, b) for a in range(4) for b in range(4) if a != b]
    assert len(grouped(topology)) == 3


def at(bus: str, *bridges: str, numa: int | None = None) -> Pci:
    return Pci(bus, bridges, numa)


@pytest.mark.parametrize(
    ("one", "other", "word"),
    [
        (at("a", "r0", "p1", "up", "d1"), at("b", "r0", "p1", "up", "d2"), "PIX"),
        (at("a.0", "r0", "p1"), at("a.1", "r0", "p1"), "PIX"),
        (at("a", "r0", "p1", "up", "d1", "up2", "d3"), at("b", "r0", "p1", "up", "d2"), "PXB"),
        (at("a", "r0", "p1", "up", "d1"), at("b", "r0", "p1"), "PXB"),
        (at("a", "r0", "p1"), at("b", "r0", "p2"), "PHB"),
        (at("a", "r0", numa=0), at("b", "r0", numa=0), "PHB"),
        (at("a", "r0", "p1", numa=1), at("b", "r1", "p1", numa=1), "NODE"),
        (at("a", "r0", "p1", numa=0), at("b", "r1", "p1", numa=1), "SYS"),
        (at("a", "r0", "p1"), at("b", "r1", "p1"), "SYS"),
        (at("a"), at("b"), "?"),
        (at("a", numa=1), at("b", "r1", numa=1), "NODE"),
    ],
)
def test_devices_are_apart_by_the_bridges_they_do_not_share(one: Pci, other: Pci, word: str) -> None:
    assert paths.distance(one, other) == paths.distance(other, one) == word
    assert word in paths.LEGEND


def gpu(index: int, *links: NvLinks) -> Gpu:
    return Gpu(index, "g", "u", 1, Pci(f"0{index}"), links)


def test_nvlinks_are_counted_directly_or_through_switches() -> None:
    assert paths.nvlinks(gpu(0, NvLinks("01", 4)), gpu(1, NvLinks("00", 4))) == 4
    assert paths.nvlinks(gpu(0, NvLinks("s", 18, True)), gpu(1, NvLinks("s", 17, True))) == 17
    assert paths.nvlinks(gpu(0, NvLinks("01", 4)), gpu(2)) == 0


def test_links_whose_ends_or_directions_differ_are_flagged(tmp_path: Path) -> None:
    even = [machine(fake.gpu_server(tmp_path / str(n), n)) for n in range(2)]
    assert asymmetries(Topology(machines=tuple(even))) == []
    slow = machine(fake.gpu_server(tmp_path / "slow", 2, rate="100 Gb/sec (4X EDR)"))
    (line,) = asymmetries(Topology(machines=(*even, slow)))
    assert line.startswith("mlx5_1 port 1 differs: ACTIVE 200 Gbit/s MTU 4096 on gpu-0, gpu-1; ACTIVE 100 Gbit/s")
    broken = replace(A, gpus=(gpu(0, NvLinks("01", 4)), gpu(1, NvLinks("00", 3))))
    assert asymmetries(Topology(machines=(broken,))) == [
        "a: 4 NVLinks from GPU0 to GPU1, 3 back",
        "a: GPU1 has 3 active NVLinks, others 4",
    ]
    narrow = replace(A, interfaces=(Interface("eth0", True, 1500, pci=Pci("00", width=4, width_max=16)),))
    assert asymmetries(Topology(machines=(narrow,))) == ["a: NIC0 (eth0) uses 4 of 16 PCIe lanes"]


def test_different_mtus_on_the_way_there_and_back_are_flagged() -> None:
    machines = (
        replace(A, interfaces=(Interface("eth0", True, 9000),)),
        replace(B, interfaces=(Interface("eth1", True, 1500),)),
    )
    ways = (Way(0, 1, "y", "x", "eth0"), Way(1, 0, "x", "y", "eth1"))
    assert asymmetries(Topology((), machines, ways)) == ["MTU 9000 from a to b (eth0), 1500 back (eth1)"]
