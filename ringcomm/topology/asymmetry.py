"""Links whose two ends or directions differ, in words: what makes one rank slower than the others. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

from ringcomm.topology import Topology, Way, paths
from ringcomm.topology.facts import Machine


def asymmetries(topology: Topology) -> list[str]:
    """One sentence each; none where all is even."""
    found = [line for machine in topology.machines for line in (*_nvlinks(machine), *_lanes(machine))]
    return [*found, *_rails(topology), *_reach(topology), *_ways(topology)]


def _nvlinks(machine: Machine) -> Iterator[str]:
    for one, other in combinations(machine.gpus, 2):
        there, back = (sum(n.count for n in a.nvlinks if n.peer == b.pci.bus) for a, b in ((one, other), (other, one)))
        if there != back:
            pair = f"GPU{one.index} to GPU{other.index}"
            yield f"{machine.hostname}: {there} NVLinks from {pair}, {back} back"
    counts = {gpu.index: sum(link.count for link in gpu.nvlinks) for gpu in machine.gpus}
    most = max(counts.values(), default=0)
    for index, count in counts.items():
        if count < most:
            yield f"{machine.hostname}: GPU{index} has {count} active NVLinks, others {most}"


def _lanes(machine: Machine) -> Iterator[str]:
    """Width only: an idle device lowers the speed of its lanes by itself."""
    for device in paths.devices(machine):
        if device.pci and device.pci.width and device.pci.width < (device.pci.width_max or 0):
            lanes = f"{device.pci.width} of {device.pci.width_max} PCIe lanes"
            yield f"{machine.hostname}: {device.label} ({device.name}) uses {lanes}"


def _rails(topology: Topology) -> Iterator[str]:
    """The same device on different machines is one rail: it runs at the pace of its slowest port."""
    seen: dict[str, dict[tuple[float, int | None, str], list[str]]] = {}
    for machine in topology.machines:
        for device in machine.rdma:
            for port in device.ports:
                kinds = seen.setdefault(f"{device.name} port {port.number}", {})
                kinds.setdefault((port.rate, port.mtu, port.state), []).append(machine.hostname)
    for name, kinds in seen.items():
        if len(kinds) > 1:
            sides = [f"{_port(*kind)} on {', '.join(hosts)}" for kind, hosts in kinds.items()]
            yield f"{name} differs: {'; '.join(sides)}"


def _port(rate: float, mtu: int | None, state: str) -> str:
    return f"{state} {rate:g} Gbit/s" + (f" MTU {mtu}" if mtu else "")


def _reach(topology: Topology) -> Iterator[str]:
    for a, b in permutations(range(len(topology.ranks)), 2):
        there, back = topology.opened[a], topology.opened[b]
        if there is not None and back is not None and b in there and a not in back:
            yield f"rank {a} could open the memory of rank {b}, but not the other way round"


def _ways(topology: Topology) -> Iterator[str]:
    ways = {(way.source, way.target): way for way in topology.ways}
    names = [machine.hostname for machine in topology.machines]
    for (a, b), way in ways.items():
        back = ways.get((b, a))
        if back is None or not way.interface:
            continue
        if not back.interface:
            yield f"{names[a]} has a way to {names[b]}, but not the other way round"
        elif a < b and (mtus := (_mtu(topology, way), _mtu(topology, back)))[0] != mtus[1]:
            yield f"MTU {mtus[0]} from {names[a]} to {names[b]} ({way.interface}), {mtus[1]} back ({back.interface})"


def _mtu(topology: Topology, way: Way) -> int:
    names = way.interface.split(",")
    return min((one.mtu for one in topology.machines[way.source].interfaces if one.name in names), default=0)
