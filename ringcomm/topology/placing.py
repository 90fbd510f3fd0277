"""From the facts of processes and machines to a Topology: parts of the machine, nodes, rails. Pure; probes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringcomm.ranges import parse_ranges
from ringcomm.topology import Rank, Topology, Way
from ringcomm.topology.facts import Cores, Machine, Part, Pci

_LOCAL, _UNKNOWN = 10, 255
"""As the firmware's table of NUMA distances has it: 10 is local, 255 out of reach; a known distance is below that."""


@dataclass(frozen=True)
class Process:
    """What one rank says of itself."""

    machine: int
    """Index into the machines."""
    pid: int
    cores: str
    """CPUs it may run on."""
    opened: str | None = None
    """Ranks whose shared memory it has opened; None: it did not try."""


@dataclass(frozen=True)
class Nic:
    """What can be a rail: an RDMA device or, on a machine without one, a network interface on PCI."""

    name: str
    pci: Pci | None


def placed(
    processes: Sequence[Process],
    machines: Sequence[Machine],
    declared: Topology | None = None,
    ways: Sequence[Way] = (),
) -> Topology:
    """The topology of a job: each machine a node, in order of its first rank, unless `declared` says otherwise."""
    order = list(dict.fromkeys(process.machine for process in processes))
    ranks = [_rank(process, order.index(process.machine), machines) for process in processes]
    if declared is not None:
        if len(declared.ranks) < len(ranks):
            raise ValueError(f"{len(declared.ranks)} ranks are declared; the job has {len(ranks)}")
        ranks = [
            replace(found, node=said.node, pod=said.pod) for found, said in zip(ranks, declared.ranks, strict=False)
        ]
    return Topology(tuple(_with_rails(ranks, machines)), tuple(machines), tuple(ways))


def nics(machine: Machine) -> list[Nic]:
    """The candidates for rails, in the order that numbers them: by name."""
    devices = [Nic(d.name, d.pci) for d in machine.rdma if any(port.state == "ACTIVE" for port in d.ports)]
    if devices:
        return devices
    return [Nic(one.name, one.pci) for one in machine.interfaces if one.up and one.pci and not one.loopback]


def part_of(cores: str, parts: Sequence[Part]) -> int | None:
    """The part that holds all of the cores; None where they span several, or nothing is known."""
    mine = set(parse_ranges(cores))
    holders = [part.number for part in parts if mine and mine <= set(parse_ranges(part.cpus))]
    return holders[0] if holders else None


def _rank(process: Process, node: int, machines: Sequence[Machine]) -> Rank:
    cores = machines[process.machine].cores
    return Rank(
        node=node,
        socket=part_of(process.cores, cores.sockets),
        numa=part_of(process.cores, cores.numa),
        complex=part_of(process.cores, cores.complexes),
        machine=process.machine,
        pid=process.pid,
        cores=process.cores,
        opened=process.opened,
    )


def _with_rails(ranks: Sequence[Rank], machines: Sequence[Machine]) -> list[Rank]:
    """Each rank on a NIC near it, of those the one that the fewest ranks of its node have before it."""
    used: dict[int, Counter[int]] = {}
    found = []
    for rank in ranks:
        assert rank.machine is not None
        near = _near(rank, machines[rank.machine])
        load = used.setdefault(rank.node, Counter())
        rail = min(near, key=lambda index: (load[index], index), default=None)
        if rail is not None:
            load[rail] += 1
        found.append(replace(rank, rail=rail))
    return found


def _near(rank: Rank, machine: Machine) -> list[int]:
    """Indices of the NICs at the smallest distance from the rank's NUMA node; all, where that is not known."""
    away = [_distance(machine.cores, rank.numa, nic.pci.numa if nic.pci else None) for nic in nics(machine)]
    return [index for index, distance in enumerate(away) if distance == min(away)]


def _distance(cores: Cores, one: int | None, other: int | None) -> int:
    if one is None or other is None:
        return _UNKNOWN
    numbers = [part.number for part in cores.numa]
    if cores.distances and one in numbers and other in numbers:
        return cores.distances[numbers.index(one)][numbers.index(other)]
    return _LOCAL if one == other else _UNKNOWN
