"""From the facts of processes and machines to a Topology: parts of the machine, nodes, rails. Pure; probes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringcomm.facts import Machine, Part, Pci
from ringcomm.ranges import parse_ranges
from ringcomm.topology import Rank, Topology, Way


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
    """Each rank of a node on a NIC of its own NUMA node, on the one that fewest ranks of the node have before it."""
    used: dict[int, Counter[int]] = {}
    found = []
    for rank in ranks:
        assert rank.machine is not None
        near = _near(rank, nics(machines[rank.machine]))
        load = used.setdefault(rank.node, Counter())
        rail = min(near, key=lambda index: (load[index], index), default=None)
        if rail is not None:
            load[rail] += 1
        found.append(replace(rank, rail=rail))
    return found


def _near(rank: Rank, candidates: Sequence[Nic]) -> list[int]:
    """Indices of the NICs at the rank's NUMA node; all, where it has none there or spans several."""
    here = [i for i, nic in enumerate(candidates) if rank.numa is not None and nic.pci and nic.pci.numa == rank.numa]
    return here or list(range(len(candidates)))
